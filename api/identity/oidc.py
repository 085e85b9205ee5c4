"""Tokens of an OpenID Connect issuer as credentials, beside API keys.

A token is a JWT: three parts with dots between them, which no API key has. It counts if a public key of the issuer has
signed it with an algorithm of the config, for this audience, and if its time has come and is not over. Claims of it
name the tenant, the project, the rights and the end user, as the config says.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx2
import jwt
from jwt.types import Options

from api.identity.keys import invalid_key
from api.identity.ports import ProjectName
from api.identity.rights import Right
from api.identity.signing_keys import SigningKeys
from cluster.config.tenants.identity import OidcConfig
from cluster.errors import Forbidden

MAX_CLAIM_CHARS = 256
"""Characters of a claim that names something. More lets long names into rows and logs; fewer refuses names that issuers
give.
"""
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_TENANT = re.compile(r"[0-9a-f]{16}")
_CHECKS: Options = {
    "require": ["exp", "iss", "aud"],
    "enforce_minimum_key_length": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
"""PyJWT does not check times, because it has a clock of its own."""
_LATEST = 1e12
"""A Unix time after which no time of a token is. It is in milliseconds if it is later."""


class TokenSubject(NamedTuple):
    """Whom a token speaks for."""

    project: ProjectName
    rights: frozenset[Right]
    end_user: str | None


class OidcTokens:
    def __init__(self, config: OidcConfig, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        """`transport`: as in `SigningKeys`."""
        self._config = config
        self._keys = SigningKeys(config.jwks_url, transport)

    async def keep_keys(self) -> None:
        """Keep the issuer's keys new, until the task is cancelled."""
        await self._keys.keep()

    async def close(self) -> None:
        await self._keys.close()

    async def subject(self, token: str, now: float) -> TokenSubject:
        """Whom a token speaks for. `now`: the Unix time.

        Raises:
            Unauthorized: the token is not valid.
            Forbidden: the token is valid, and names no tenant or no right of this service.
            StateUnavailable: the keys of the issuer cannot be fetched.
        """
        claims = await self._claims(token)
        self._check_times(claims, now)
        return TokenSubject(self._project(claims), self._rights(claims), self._end_user(claims))

    async def _claims(self, token: str) -> Mapping[str, Any]:
        """The claims of a token whose signature, issuer and audience are right.

        Raises Unauthorized, StateUnavailable.
        """
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if algorithm not in config.algorithms:
                raise invalid_key(f"the token is not signed with one of {', '.join(config.algorithms)}")
            key = await self._keys.key(header.get("kid"), algorithm)
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=config.audience,
                issuer=config.issuer,
                options=_CHECKS,
            )
        except jwt.InvalidAudienceError:
            raise invalid_key("the token is for another audience than this service") from None
        except jwt.InvalidIssuerError:
            raise invalid_key("the token is of another issuer than the one of this service") from None
        except jwt.MissingRequiredClaimError as error:
            raise invalid_key(f"the token lacks the claim '{error.claim}'") from None
        except jwt.InvalidSignatureError:
            raise invalid_key("the signature of the token is wrong") from None
        except (jwt.PyJWTError, ValueError) as error:
            raise invalid_key("the token is no valid JWT") from error

    def _check_times(self, claims: Mapping[str, Any], now: float) -> None:
        """Raises Unauthorized."""
        leeway_s = self._config.leeway_s
        if now >= _time_in(claims, "exp", math.inf) + leeway_s:
            raise invalid_key("the token has expired")
        if now < _time_in(claims, "nbf", -math.inf) - leeway_s or now < _time_in(claims, "iat", -math.inf) - leeway_s:
            raise invalid_key("the token is not valid yet")

    def _project(self, claims: Mapping[str, Any]) -> ProjectName:
        """Raises Forbidden."""
        config = self._config
        named = _text_of(claims, config.tenant_claim)
        if named is None:
            raise _no_access(f"the token has no claim '{config.tenant_claim}', which names its tenant")
        tenant = config.tenants.get(named) if config.tenants else named
        if tenant is None or not _TENANT.fullmatch(tenant):
            raise _no_access(f"the claim '{config.tenant_claim}' of the token names no tenant of this service")
        project = None if config.project_claim is None else _text_of(claims, config.project_claim)
        return ProjectName(tenant, project)

    def _rights(self, claims: Mapping[str, Any]) -> frozenset[Right]:
        """Raises Forbidden."""
        config = self._config
        if config.rights_claim is None:
            return frozenset(map(Right, config.default_rights))
        found = _claim(claims, config.rights_claim)
        values = found.split() if isinstance(found, str) else found if isinstance(found, list) else []
        names = [value for value in values if isinstance(value, str)]
        if config.rights:
            names = [right for name in names for right in config.rights.get(name, ())]
        rights = frozenset(right for right in Right if right in names)
        if not rights:
            raise _no_access(f"the claim '{config.rights_claim}' of the token names no right of this service")
        return rights

    def _end_user(self, claims: Mapping[str, Any]) -> str | None:
        return _text_of(claims, self._config.end_user_claim)


def is_token(credential: str) -> bool:
    """Whether a credential has the form of a JWT."""
    return _TOKEN.fullmatch(credential) is not None


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path with dots. None if there is none."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _text_of(claims: Mapping[str, Any], name: str) -> str | None:
    """A claim that is a text which can be a name. Raises Forbidden if it is there and is not."""
    found = _claim(claims, name)
    if found is None:
        return None
    if not (isinstance(found, str) and 0 < len(found) <= MAX_CLAIM_CHARS and found.isprintable()):
        raise _no_access(f"the claim '{name}' of the token is no text of 1 to {MAX_CLAIM_CHARS} printable characters")
    return found


def _time_in(claims: Mapping[str, Any], name: str, default: float) -> float:
    """Raises Unauthorized."""
    found = claims.get(name, default)
    if name in claims and (not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= _LATEST):
        raise invalid_key(f"the claim '{name}' of the token is no time")
    return float(found)


def _no_access(why: str) -> Forbidden:
    return Forbidden(why, None, "insufficient_permissions")
