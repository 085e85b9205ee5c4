"""The config section `admin:`."""

from typing import Any

import pytest

from cluster.config.application import parse
from cluster.config.ingress import IngressConfig
from cluster.config.tenants.admin import MOST_BODY_BYTES, MOST_CONNECTIONS, AdminConfig


def parsed(**args: Any) -> AdminConfig:
    return parse({"model": "m", **args}).admin


def test_default_is_a_loopback_port_with_a_key() -> None:
    assert parsed() == AdminConfig(host="127.0.0.1", port=8001, key_required=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "localhost"])
def test_key_may_be_left_out_on_a_loopback_address(host: str) -> None:
    assert not parsed(admin={"host": host, "key_required": False}).key_required


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"admin": {"host": "0.0.0.0", "key_required": False}}, "set key_required to true, or listen on 127.0.0.1"),
        ({"admin": {"host": "10.0.0.5", "key_required": False}}, "everyone who reaches the port could make API keys"),
        ({"admin": {"key_required": False}, "ingress": {"allowed_hosts": ["*"]}}, "list the names.*DNS rebinding"),
        ({"admin": {"port": 8000}}, "as ingress.port is: choose another one"),
        ({"ingress": {"port": 8001}}, "as ingress.port is: choose another one"),
        ({"admin": {"port": 0}}, r"\$\.admin\.port"),
        ({"admin": {"key": "secret"}}, "unknown field `key`"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_change(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parsed(**args)


def test_admin_port_takes_less_than_the_public_one_and_no_pages_of_other_origins() -> None:
    ingress = IngressConfig(allowed_hosts=["admin.example.com"], cors_origins=["*"], drain_s=600)
    listener = AdminConfig(host="10.0.0.5", port=9001).as_listener(ingress)
    assert (listener.host, listener.port, listener.cors_origins) == ("10.0.0.5", 9001, [])
    assert listener.allowed_hosts == ["admin.example.com"]
    assert (listener.max_connections, listener.max_body_bytes) == (MOST_CONNECTIONS, MOST_BODY_BYTES)
    assert listener.max_connections_per_address * 8 == MOST_CONNECTIONS, "one address cannot keep operators out"
    assert listener.patience_s == 1.0
    assert AdminConfig().as_listener(IngressConfig(max_connections=8)).max_connections == 8
