"""The config section `identity:`."""

from typing import Any, get_args

import msgspec
import pytest

from api.identity.rights import DEFAULT_RIGHTS, Right
from cluster.config.tenants.identity import OPEN_ACCESS, IdentityConfig, OidcConfig, RightName

OIDC: dict[str, Any] = {"issuer": "https://id", "audience": "baton", "jwks_url": "https://id/jwks"}


def parsed(**args: Any) -> IdentityConfig:
    return msgspec.convert(args, IdentityConfig)


def test_rights_of_the_config_are_those_of_keys() -> None:
    assert set(get_args(RightName)) == set(Right)
    assert set(OidcConfig(**OIDC).default_rights) == DEFAULT_RIGHTS


def test_credentials_are_required_unless_the_config_says_otherwise() -> None:
    assert IdentityConfig().required
    for host in ("127.0.0.1", "0.0.0.0", "10.0.0.1"):
        assert IdentityConfig().refusal(host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "example.com", "::"])
def test_open_access_from_outside_needs_its_sentence(host: str) -> None:
    refusal = parsed(required=False).refusal(host)
    assert refusal is not None and OPEN_ACCESS in refusal and host in refusal
    assert parsed(required=False, open_access=OPEN_ACCESS).refusal(host) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_open_access_on_a_loopback_address_needs_no_sentence(host: str) -> None:
    assert parsed(required=False).refusal(host) is None


def test_sentence_beside_required_is_refused() -> None:
    assert parsed(open_access=OPEN_ACCESS).refusal("0.0.0.0") is not None


@pytest.mark.parametrize(
    "args",
    [
        {"open_access": True},
        {"open_access": "yes"},
        {"offline_s": -1},
        {"offline_s": 90000},
        {"keys": []},
        {"oidc": {}},
        {"oidc": {**OIDC, "algorithms": []}},
        {"oidc": {**OIDC, "algorithms": ["HS256"]}},
        {"oidc": {**OIDC, "algorithms": ["none"]}},
        {"oidc": {**OIDC, "rights": {"admin": ["everything"]}}},
        {"oidc": {**OIDC, "default_rights": []}},
        {"oidc": {**OIDC, "tenants": {"blue": "blue"}}},
        {"oidc": {**OIDC, "leeway_s": 1000}},
    ],
    ids=str,
)
def test_wrong_value_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        parsed(**args)


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example.com/jwks",
        "http://10.0.0.1/jwks",
        "http://127.0.0.1.example.com/jwks",
        "http://[2001:db8::1]/jwks",
        "http://127.0.0.1@example.com/jwks",
        "ftp://127.0.0.1/jwks",
        "https://user:secret@id/jwks",
        "/jwks",
    ],
)
def test_keys_are_fetched_over_https(url: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        parsed(oidc={**OIDC, "jwks_url": url})


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/jwks", "http://localhost/jwks", "http://[::1]:80/jwks"])
def test_keys_may_be_fetched_from_the_machine_itself(url: str) -> None:
    assert parsed(oidc={**OIDC, "jwks_url": url}).oidc is not None
