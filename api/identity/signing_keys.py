"""The public keys of an OIDC issuer: fetched in the background, bounded, and kept for a while if the issuer is away."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any

import httpx2
import jwt
import msgspec

from api.identity.keys import invalid_key
from api.identity.known import unchecked
from cluster.unreadable import UNREADABLE

logger = logging.getLogger("baton.identity")

REFRESH_S = 300.0
"""Time between two fetches of the keys, in seconds. Shorter asks the issuer more often; longer accepts a key for longer
that the issuer has withdrawn.
"""
ASK_AGAIN_S = 10.0
"""Least time between two fetches that tokens ask for, in seconds: with an unknown key, or while there are no keys.
Shorter lets anybody make Baton ask the issuer more often; longer refuses for longer the tokens of a new key that the
issuer had not published before.
"""
FETCH_S = 5.0
"""How long a fetch may take, in seconds. Shorter fails while the issuer is slow; longer keeps clients waiting."""
KEPT_S = 3600.0
"""How long keys are used after they were fetched while fetches fail, in seconds. Longer bridges longer outages of the
issuer; shorter accepts a withdrawn key for less time.
"""
MAX_BYTES = 256 << 10
"""Bytes of the document. Those of large issuers have 20 KiB. More lets a document take memory; less refuses one."""
MAX_KEYS = 100
"""Keys of the document. More takes memory; fewer refuses issuers with a key for each of many services."""
KINDS = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The type of the key by the first letters of the algorithm."""


class JwksUnavailable(Exception):
    """The keys could not be fetched."""


class SigningKeys:
    def __init__(self, url: str, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """`transport`: None makes one. It follows no redirects, takes no proxies from the environment, and trusts the
        authorities that OpenSSL trusts on this machine (SSL_CERT_FILE and SSL_CERT_DIR replace them).
        """
        self._url = url
        self._transport = transport or httpx2.AsyncHTTPTransport(verify=ssl.create_default_context(), trust_env=False)
        self._keys: Mapping[tuple[str | None, str], Mapping[str, Any]] = {}
        """JWKs by `kid` and `kty`."""
        self._made: dict[tuple[str | None, str], jwt.PyJWK] = {}
        """Keys by `kid` and algorithm, made of `_keys` when they are needed."""
        self._fetched_at = self._tried_at = float("-inf")
        """The event loop's times at which fetches have begun: of the last that has succeeded, and of the last."""
        self._fetching: asyncio.Task[None] | None = None

    async def keep(self) -> None:
        """Fetch the keys again and again."""
        while True:
            await self._fetch_together()
            await asyncio.sleep(REFRESH_S if self._is_newest() else ASK_AGAIN_S)

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
        await self._transport.aclose()

    async def key(self, kid: str | None, algorithm: str) -> jwt.PyJWK:
        """The key of a token. `kid`: None if the token names none, which is allowed while the issuer has one key of the
        algorithm's type.

        Raises:
            Unauthorized: the issuer has no such key.
            StateUnavailable: the issuer cannot be asked.
        """
        now = _now()
        may_fetch = self._fetching is not None or now - self._tried_at >= ASK_AGAIN_S
        if may_fetch and (not self._has_keys(now) or self._find(kid, algorithm) is None):
            await self._fetch_together()
        if not self._has_keys(_now()):
            raise unchecked()
        found = self._find(kid, algorithm)
        if found is None:
            if not self._is_newest():
                raise unchecked()  # the issuer may have published this key meanwhile
            raise invalid_key("the token is signed with a key that its issuer does not publish")
        return self._usable(found, kid, algorithm)

    def _usable(self, found: Mapping[str, Any], kid: str | None, algorithm: str) -> jwt.PyJWK:
        if (kid, algorithm) not in self._made:
            try:
                self._made[kid, algorithm] = jwt.PyJWK(dict(found), algorithm)
            except (jwt.PyJWTError, ValueError, TypeError) as error:
                raise invalid_key(f"the issuer's key cannot be used with {algorithm}") from error
        return self._made[kid, algorithm]

    def _find(self, kid: str | None, algorithm: str) -> Mapping[str, Any] | None:
        kind = KINDS[algorithm[:2]]
        if kid is None:
            of_kind = [key for (_, found), key in self._keys.items() if found == kind]
            found = of_kind[0] if len(of_kind) == 1 else None
        else:
            found = self._keys.get((kid, kind))
        return None if found is None or found.get("alg", algorithm) != algorithm else found

    def _has_keys(self, now: float) -> bool:
        return now - self._fetched_at <= KEPT_S

    def _is_newest(self) -> bool:
        """Whether the last fetch has succeeded."""
        return self._fetched_at == self._tried_at

    async def _fetch_together(self) -> None:
        """Fetch the keys, or wait for the fetch in progress."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
        await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        self._tried_at = begun = _now()
        try:
            async with asyncio.timeout(FETCH_S):
                keys = keys_in(await self._document())
        except (TimeoutError, httpx2.TransportError, JwksUnavailable) as error:
            logger.warning("the keys of %s cannot be fetched: %s", self._url, str(error) or type(error).__name__)
        except Exception:
            logger.exception("the keys of %s cannot be fetched", self._url)
        else:
            self._keys, self._made = keys, {}
            self._fetched_at = begun
        finally:
            self._fetching = None

    async def _document(self) -> bytes:
        """Raises JwksUnavailable."""
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        response = await self._transport.handle_async_request(httpx2.Request("GET", self._url, headers=headers))
        try:
            if response.status_code != 200:
                raise JwksUnavailable(f"the answer has the status {response.status_code}")
            document = bytearray()
            async for part in response.aiter_raw():
                document += part
                if len(document) > MAX_BYTES:
                    raise JwksUnavailable(f"the document has more than {MAX_BYTES} bytes")
            return bytes(document)
        finally:
            await response.aclose()


def keys_in(document: bytes) -> Mapping[tuple[str | None, str], Mapping[str, Any]]:
    """The keys of a JWKS that sign, by `kid` and `kty`. Of two with the same, the first counts.

    Raises JwksUnavailable.
    """
    try:
        found = msgspec.json.decode(document, type=dict[str, Any])["keys"]
        signing = [key for key in found if key.get("use", "sig") == "sig" and key.get("kty") in KINDS.values()]
        named = {(_kid(key), str(key["kty"])): key for key in reversed(signing)}
    except (*UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise JwksUnavailable(f"the document is no JWKS ({type(error).__name__})") from error
    if not 0 < len(named) <= MAX_KEYS:
        raise JwksUnavailable(f"the document has {len(named)} usable keys, not 1 to {MAX_KEYS}")
    return named


def _kid(key: Mapping[str, Any]) -> str | None:
    kid = key.get("kid")
    return None if kid is None else str(kid)


def _now() -> float:
    return asyncio.get_running_loop().time()
