"""Whom the edge (api/edge/edge.py) admits, by the credential of a request. This module is about the public port;
api/identity/admin/admin_access.py is about the admin port.

Where no credential is required, clients still send one: OpenAI's client does not start without a key. There, a text
that is neither an API key nor a token is the name of a tenant, which anybody may use who knows it. What has the form of
a key or a token is always checked, so that a mistyped or revoked key never becomes a tenant of its own.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from api.identity.admin.admin_key import ADMIN_PREFIX
from api.identity.credentials import Headers, key_of
from api.identity.keys import PREFIX, invalid_key
from api.identity.oidc import is_token
from api.identity.principal import ANYBODY, Principal
from api.identity.rights import ALL_RIGHTS
from api.identity.tenants import PRINCIPAL, tenant_of_key

Identify = Callable[[str], Awaitable[Principal]]
"""Who asks with a credential: `identify` of Authentication (api/identity/authentication.py), with its errors."""
HAS_TENANTS = ("/v1/", "/tokenize", "/detokenize", "/version")
"""Prefixes of the paths whose requests belong to a tenant. Other paths of the public port ask for no credential."""


class AccessPort(Protocol):
    async def admit(self, path: str, headers: Headers) -> Mapping[str, object]:
        """What the routes find in the state of a request that is admitted. Raises Unauthorized, Forbidden,
        StateUnavailable, ServingError.
        """
        ...

    def takes_bodies(self, path: str) -> bool:
        """Whether a path has routes that read a body. On others anybody may ask, who has not said who asks."""
        ...


class Access:
    """The AccessPort of the public port."""

    def __init__(self, identify: Identify, *, is_required: bool) -> None:
        """`is_required`: whether each request needs a credential."""
        self._identify = identify
        self._is_required = is_required

    async def admit(self, path: str, headers: Headers) -> Mapping[str, object]:
        """Who asks, on a path whose requests belong to a tenant. Other paths ask for no credential."""
        if not path.startswith(HAS_TENANTS):
            return {}
        return {PRINCIPAL: await self.principal(key_of(headers, reads_api_key_header=True))}

    def takes_bodies(self, path: str) -> bool:
        return path.startswith(HAS_TENANTS)

    async def principal(self, credential: str | None) -> Principal:
        """Who asks. Raises Unauthorized without a credential that is required, and the errors of `identify`."""
        if credential is None:
            if self._is_required:
                raise invalid_key("this service needs an API key: send it as 'Authorization: Bearer <key>'")
            return ANYBODY
        if credential.startswith(ADMIN_PREFIX):
            raise invalid_key("this port takes API keys of tenants, and no admin key: the admin key is for admin.port")
        if self._is_required or credential.startswith(PREFIX) or is_token(credential):
            return await self._identify(credential)
        return Principal(tenant=tenant_of_key(credential), project="", key="", rights=ALL_RIGHTS)
