"""Tokens of an issuer whose keys are fetched from a real HTTP server."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from api.identity import signing_keys as module
from api.identity.authentication import Authentication
from api.identity.oidc import OidcTokens, TokenSubject, is_token
from api.identity.ports import ProjectName
from api.identity.rights import DEFAULT_RIGHTS, Right
from api.identity.signing_keys import MAX_KEYS
from cluster.config.tenants.identity import OidcConfig
from cluster.errors import Forbidden, StateUnavailable, Unauthorized
from tests.certificates import Authority
from tests.component.accounts import OPERATOR, accounts_at
from tests.component.emptied import emptied

ISSUER, AUDIENCE = "https://id.example.com", "baton"
NOW = 1_700_000_000.0
TENANT = "0123456789abcdef"

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
SMALL_RSA = rsa.generate_private_key(65537, 1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def a_jwk(key: Key, kid: str | None = "k1", **more: Any) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        made = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        made = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        made = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**made, **({} if kid is None else {"kid": kid}), **more}


def a_token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "k1", **claims: Any) -> str:
    """`claims`: None leaves a claim out."""
    return signed(claims, key, algorithm, kid)


def signed(claims: dict[str, Any], key: Any = RSA, algorithm: str = "RS256", kid: str | None = "k1") -> str:
    every = {"iss": ISSUER, "aud": AUDIENCE, "sub": "u1", "tenant": TENANT, "exp": NOW + 60, **claims}
    payload = {name: value for name, value in every.items() if value is not None}
    return jwt.encode(payload, key, algorithm, headers=None if kid is None else {"kid": kid})


class Issuer:
    """A server that publishes keys, and fails in several ways."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = [a_jwk(RSA)]
        self.status = "200 OK"
        self.body: bytes | None = None
        """Instead of the keys."""
        self.hangs = False
        self.num_fetches = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/jwks"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.num_fetches += 1
            if self.hangs:
                await asyncio.sleep(60)
            body = json.dumps({"keys": self.keys}).encode() if self.body is None else self.body
            lines = [f"HTTP/1.1 {self.status}", f"content-length: {len(body)}", "location: /other", "connection: close"]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    await made.start()
    yield made
    await made.stop()


Make = Callable[..., OidcTokens]


@pytest.fixture
async def tokens_of(issuer: Issuer) -> AsyncIterator[Make]:
    made: list[OidcTokens] = []

    def make(**config: Any) -> OidcTokens:
        values = {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": issuer.url, **config}
        made.append(OidcTokens(OidcConfig(**values)))
        return made[-1]

    yield make
    for tokens in made:
        await tokens.close()


@pytest.fixture
def tokens(tokens_of: Make) -> OidcTokens:
    return tokens_of(algorithms=("RS256", "PS256", "ES256", "EdDSA"))


async def refused(tokens: OidcTokens, token: str, why: str, now: float = NOW) -> None:
    with pytest.raises(Unauthorized, match=why) as caught:
        await tokens.subject(token, now)
    assert (caught.value.http_status, caught.value.code) == (401, "invalid_api_key")
    assert token not in str(caught.value)


async def test_token_names_tenant_and_end_user(tokens: OidcTokens, issuer: Issuer) -> None:
    for _ in range(3):
        found = await tokens.subject(a_token(), NOW)
        assert found == TokenSubject(ProjectName(TENANT, None), DEFAULT_RIGHTS, "u1")
    assert issuer.num_fetches == 1


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "EdDSA")],
    ids=lambda value: str(value)[:5],
)
async def test_each_kind_of_key_signs(tokens: OidcTokens, issuer: Issuer, key: Key, algorithm: str) -> None:
    issuer.keys = [a_jwk(key)]
    assert (await tokens.subject(a_token(key, algorithm), NOW)).end_user == "u1"


async def test_times_of_a_token_count_with_the_leeway(tokens: OidcTokens) -> None:
    await tokens.subject(a_token(), NOW + 60 + 29)
    await refused(tokens, a_token(), "has expired", NOW + 60 + 30)
    await tokens.subject(a_token(nbf=NOW + 29, iat=NOW + 29), NOW)
    await refused(tokens, a_token(nbf=NOW + 31), "not valid yet")
    await refused(tokens, a_token(iat=NOW + 31), "not valid yet")


@pytest.mark.parametrize("exp", ["soon", True, float("inf"), float("nan"), -1, 10**400, [1]])
async def test_time_that_is_none_is_refused(tokens: OidcTokens, exp: Any) -> None:
    await refused(tokens, a_token(exp=exp), "is no time|no valid JWT")


@pytest.mark.parametrize("claim", ["exp", "iss", "aud"])
async def test_token_without_a_claim_that_limits_it_is_refused(tokens: OidcTokens, claim: str) -> None:
    await refused(tokens, signed({claim: None}), claim)


@pytest.mark.parametrize("audience", ["other", ["other", "x"], "", [], {"baton": 1}])
async def test_token_for_another_audience_is_refused(tokens: OidcTokens, audience: Any) -> None:
    await refused(tokens, a_token(aud=audience), "audience|no valid JWT|'aud'")


async def test_token_for_several_audiences_is_accepted(tokens: OidcTokens) -> None:
    await tokens.subject(a_token(aud=["other", AUDIENCE]), NOW)


@pytest.mark.parametrize("issuer_claim", [ISSUER + "/", "https://evil.example.com", "", [ISSUER]])
async def test_token_of_another_issuer_is_refused(tokens: OidcTokens, issuer_claim: Any) -> None:
    await refused(tokens, forged(iss=issuer_claim), "issuer|no valid JWT")


def forged(**claims: Any) -> str:
    """PyJWT itself makes no token with an issuer that is no text."""
    payload = {"iss": ISSUER, "aud": AUDIENCE, "sub": "u1", "tenant": TENANT, "exp": NOW + 60, **claims}
    return jwt.PyJWS().encode(json.dumps(payload).encode(), RSA, "RS256", headers={"kid": "k1", "typ": "JWT"})


def part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_token_without_a_signature_is_refused(tokens: OidcTokens, algorithm: str) -> None:
    body = a_token().split(".")[1]
    unsigned = f"{part({'alg': algorithm, 'kid': 'k1'})}.{body}."
    assert is_token(unsigned)
    await refused(tokens, unsigned, "not signed with one of")


async def test_public_key_is_no_secret_of_hs256(tokens: OidcTokens) -> None:
    """The attack that gave `alg` its fame."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, form)
    text = f"{part({'alg': 'HS256', 'kid': 'k1'})}.{a_token().split('.')[1]}"
    token = f"{text}.{part(hmac.digest(pem, text.encode(), hashlib.sha256))}"
    await refused(tokens, token, "not signed with one of")


async def test_algorithm_that_the_config_does_not_have_is_refused(tokens_of: Make) -> None:
    await refused(tokens_of(algorithms=("ES256",)), a_token(), "not signed with one of ES256")


async def test_algorithm_of_another_kind_of_key_is_refused(tokens: OidcTokens) -> None:
    await refused(tokens, a_token(EC, "ES256"), "does not publish")


async def test_algorithm_that_the_key_is_not_for_is_refused(tokens: OidcTokens, issuer: Issuer) -> None:
    issuer.keys = [a_jwk(RSA, alg="PS256")]
    await refused(tokens, a_token(), "does not publish")
    await tokens.subject(a_token(algorithm="PS256"), NOW)


async def test_key_of_another_person_with_the_kid_is_refused(tokens: OidcTokens) -> None:
    await refused(tokens, a_token(OTHER_RSA), "signature")


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_key_that_can_be_broken_is_refused(tokens: OidcTokens, issuer: Issuer) -> None:
    issuer.keys = [a_jwk(SMALL_RSA)]
    await refused(tokens, a_token(SMALL_RSA), "no valid JWT")


@pytest.mark.parametrize("use", ["enc", "other"])
async def test_key_that_is_not_for_signatures_is_none(tokens: OidcTokens, issuer: Issuer, use: str) -> None:
    issuer.keys = [a_jwk(RSA, use=use), a_jwk(OTHER_RSA, "k2")]
    await refused(tokens, a_token(), "does not publish")


async def test_secret_in_the_document_is_no_key(tokens: OidcTokens, issuer: Issuer) -> None:
    issuer.keys = [{"kty": "oct", "k": part(b"x" * 32), "kid": "k1"}, a_jwk(OTHER_RSA, "k2")]
    await refused(tokens, a_token(), "does not publish")


async def test_token_without_kid_is_accepted_while_there_is_one_key(tokens: OidcTokens, issuer: Issuer) -> None:
    issuer.keys = [a_jwk(RSA), a_jwk(EC, "k2")]
    await tokens.subject(a_token(kid=None), NOW)  # the other one is of another kind
    issuer.keys = [a_jwk(RSA), a_jwk(OTHER_RSA, "k2")]
    await tokens._keys._fetch_together()
    await refused(tokens, a_token(kid=None), "does not publish")


NONSENSE = [
    "a.b.c",
    f"{part(b'[' * 2000)}.e30.YWJj",
    f"{part({'alg': 'RS256', 'kid': ['k1']})}.e30.YWJj",
    f"{part({'alg': ['RS256']})}.e30.YWJj",
    f"{part([])}.e30.YWJj",
    f"{part({'alg': 'RS256', 'kid': 'k1', 'crit': ['x'], 'x': 1})}.e30.YWJj",
    f"{part({'alg': 'RS256', 'kid': 'k1', 'b64': False})}.e30.YWJj",
    a_token() + "x",
    a_token()[:-1],
]


@pytest.mark.parametrize("token", NONSENSE, ids=range(len(NONSENSE)))
async def test_nonsense_is_refused(tokens: OidcTokens, token: str) -> None:
    await refused(tokens, token, ".")


async def test_signed_nonsense_is_refused(tokens: OidcTokens) -> None:
    for body in (b"[" * 2000, b"[]", b"null", b"\xff", b'{"exp": ' + b"9" * 5000 + b"}"):
        token = jwt.PyJWS().encode(body, RSA, "RS256", headers={"kid": "k1"})
        await refused(tokens, token, "no valid JWT|lacks")


def test_api_key_is_no_token() -> None:
    assert not is_token("sk-baton-AbCd1234-" + "x" * 46)
    assert not is_token("sk-alice") and not is_token("a.b") and not is_token("a.b.c.d") and is_token("a.b.")


async def test_rotated_key_is_fetched_when_a_token_names_it(
    tokens: OidcTokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tokens.subject(a_token(), NOW)
    issuer.keys = [a_jwk(OTHER_RSA, "k2")]
    await refused(tokens, a_token(OTHER_RSA, kid="k2"), "does not publish")  # asked just now
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    await tokens.subject(a_token(OTHER_RSA, kid="k2"), NOW)
    assert issuer.num_fetches == 2
    await refused(tokens, a_token(), "does not publish")


async def test_new_key_with_an_old_kid_replaces_the_old_one(tokens: OidcTokens, issuer: Issuer) -> None:
    await tokens.subject(a_token(), NOW)
    issuer.keys = [a_jwk(OTHER_RSA)]
    await tokens._keys._fetch_together()
    await tokens.subject(a_token(OTHER_RSA), NOW)
    await refused(tokens, a_token(), "signature")


async def test_unknown_keys_make_one_fetch_at_a_time_and_few_altogether(tokens: OidcTokens, issuer: Issuer) -> None:
    asked = [tokens.subject(a_token(kid=f"unknown-{number}"), NOW) for number in range(100)]
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(result, Unauthorized) for result in results)
    for number in range(50):
        await refused(tokens, a_token(kid=f"more-{number}"), "does not publish")
    assert issuer.num_fetches == 1


async def away(tokens: OidcTokens, token: str) -> bool:
    with pytest.raises(StateUnavailable) as caught:
        await tokens.subject(token, NOW)
    return caught.value.http_status == 503


async def test_issuer_that_is_away_from_the_beginning_is_waited_for(
    tokens: OidcTokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = int(issuer.url.rpartition(":")[2].partition("/")[0])
    await issuer.stop()
    assert await away(tokens, a_token())
    begun = time.monotonic()
    assert await away(tokens, a_token())
    assert time.monotonic() - begun < 0.05  # it is not asked again yet
    await issuer.start(port)
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    await tokens.subject(a_token(), NOW)


async def test_keys_go_on_while_the_issuer_is_away_and_end_then(
    tokens: OidcTokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tokens.subject(a_token(), NOW)
    await issuer.stop()
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    assert await away(tokens, a_token(kid="unknown"))  # it may be new
    await tokens.subject(a_token(), NOW)
    monkeypatch.setattr(module, "KEPT_S", 0.0)
    assert await away(tokens, a_token())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"keys": {}}',
        b'{"keys": [1]}',
        b'{"keys": []}',
        b"[" * 100_000,
        b" " * (1 << 20),
        json.dumps({"keys": [a_jwk(RSA, f"k{number}") for number in range(MAX_KEYS + 1)]}).encode(),
        json.dumps({"keys": [a_jwk(RSA, "k" * 300_000)]}).encode(),
    ],
    ids=range(10),
)
async def test_document_that_is_none_or_giant_is_refused(tokens: OidcTokens, issuer: Issuer, body: bytes) -> None:
    issuer.body = body
    assert await away(tokens, a_token())


@pytest.mark.parametrize("status", ["500 Oops", "302 Found", "404 Not Found", "204 No Content"])
async def test_answer_with_another_status_is_none(tokens: OidcTokens, issuer: Issuer, status: str) -> None:
    issuer.status = status
    assert await away(tokens, a_token())


async def test_issuer_that_hangs_is_left(tokens: OidcTokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer.hangs = True
    monkeypatch.setattr(module, "FETCH_S", 0.05)
    assert await away(tokens, a_token())


async def test_issuer_with_a_certificate_of_a_stranger_is_not_believed(
    issuer: Issuer, tokens_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Authority().issued(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(str(files.certificate), str(files.key))
    await issuer.stop()
    await issuer.start(tls=tls)
    assert await away(tokens_of(), a_token())
    monkeypatch.setenv("SSL_CERT_FILE", str(files.authority))
    await tokens_of().subject(a_token(), NOW)


async def test_broken_key_in_the_document_harms_no_other(tokens: OidcTokens, issuer: Issuer) -> None:
    issuer.keys = [{"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"}, {"kty": "EC", "kid": "k3"}, a_jwk(RSA)]
    await tokens.subject(a_token(), NOW)
    await refused(tokens, a_token(kid="broken"), "cannot be used with RS256")


async def test_keys_are_fetched_in_the_background(
    tokens: OidcTokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_S", 0.02)
    keeping = asyncio.create_task(tokens.keep_keys())
    await asyncio.sleep(0.1)
    issuer.keys = [a_jwk(OTHER_RSA, "k2")]
    await asyncio.sleep(0.1)
    await tokens.subject(a_token(OTHER_RSA, kid="k2"), NOW)
    await refused(tokens, a_token(), "does not publish")
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_claims_are_mapped_as_the_config_says(tokens_of: Make) -> None:
    tokens = tokens_of(
        tenant_claim="org.team",
        tenants={"blue": TENANT},
        project_claim="https://baton/project",
        rights_claim="realm_access.roles",
        rights={"chat": ["inference"], "reviewer": ["safety:review", "state:read"]},
        end_user_claim="email",
    )
    claims = {"org": {"team": "blue"}, "https://baton/project": "proj_1", "email": "a@example.com", "tenant": None}
    roles = {"realm_access": {"roles": ["chat", "reviewer", "admin", 7]}}
    found = await tokens.subject(signed({**claims, **roles}), NOW)
    rights = {Right.INFERENCE, Right.SAFETY_REVIEW, Right.STATE_READ}
    assert found == TokenSubject(ProjectName(TENANT, "proj_1"), frozenset(rights), "a@example.com")
    for wrong in (
        {**claims, "org": {"team": "red"}, **roles},
        {**claims, "org": "blue", **roles},
        {**claims, "realm_access": {"roles": ["admin"]}},
        {**claims, "realm_access": {"roles": {"chat": 1}}},
        claims,
        {**claims, **roles, "email": 5},
        {**claims, **roles, "email": "x" * 300},
        {**claims, **roles, "email": "a\nb"},
    ):
        with pytest.raises(Forbidden) as caught:
            await tokens.subject(signed(wrong), NOW)
        assert caught.value.code == "insufficient_permissions"


async def test_scope_is_read_as_words(tokens_of: Make) -> None:
    tokens = tokens_of(rights_claim="scope")
    found = await tokens.subject(a_token(scope="openid inference usage:read"), NOW)
    assert found.rights == {Right.INFERENCE, Right.USAGE_READ}


@pytest.mark.parametrize("tenant", [None, "", "*", "anonymous", TENANT.upper(), TENANT + "0", 5, [TENANT]])
async def test_tenant_that_cannot_be_is_refused(tokens: OidcTokens, tenant: Any) -> None:
    with pytest.raises(Forbidden):
        await tokens.subject(a_token(tenant=tenant), NOW)


async def test_token_is_a_credential_beside_keys(issuer: Issuer, tokens: OidcTokens, postgres: str) -> None:
    emptied(postgres)
    async with accounts_at(postgres) as accounts:
        tenant, default = await accounts.tenants.create("team", OPERATOR)
        authentication = Authentication(accounts.known, lambda: NOW, 300.0, tokens)
        await authentication.look()
        found = await authentication.identify(a_token(tenant=tenant.id))
        assert (found.tenant, found.project, found.key, found.end_user) == (tenant.id, default.id, "", "u1")
        assert found.rights == DEFAULT_RIGHTS
        with pytest.raises(Forbidden) as caught:
            await authentication.identify(a_token())
        assert caught.value.code == "unknown_tenant"
        await accounts.tenants.suspend(tenant.id, OPERATOR)
        await authentication.look()
        with pytest.raises(Forbidden) as caught:
            await authentication.identify(a_token(tenant=tenant.id))
        assert caught.value.code == "tenant_suspended"
        issued = await accounts.key(await accounts.tenant("other"))
        assert (await authentication.identify(issued.text)).key == issued.key.id
        await authentication.close()
