"""Whom the edge (api/edge/edge.py) admits on the admin port: whoever sends the admin key."""

import hashlib
import hmac
from collections.abc import Collection, Mapping

from api.identity.admin.admin_key import ADMIN_PREFIX
from api.identity.credentials import Headers, key_of
from api.identity.keys import PREFIX, invalid_key
from cluster.errors import Unauthorized
from cluster.metrics.tenants import ADMIN_REFUSALS


class AdminAccess:
    """An AccessPort (api/identity/access.py). It covers every path but the open ones, so that no route can be
    forgotten.
    """

    def __init__(self, key: str | None, open_paths: Collection[str] = ()) -> None:
        """`key`: None if none is required. `open_paths`: exactly these paths ask for no key. They are those of the
        page's files: a browser sends no key when it opens a page.
        """
        self._digest = None if key is None else _digest(key)
        self._open_paths = frozenset(open_paths)

    async def admit(self, path: str, headers: Headers) -> Mapping[str, object]:
        """Raises Unauthorized without the admin key, and with another one."""
        if self._digest is not None and path not in self._open_paths:
            try:
                credential = key_of(headers)
            except Unauthorized:
                ADMIN_REFUSALS.labels("malformed").inc()
                raise
            self._check(credential, self._digest)
        return {}

    def takes_bodies(self, path: str) -> bool:
        return path not in self._open_paths

    def _check(self, credential: str | None, digest: bytes) -> None:
        if credential is None:
            ADMIN_REFUSALS.labels("missing").inc()
            raise invalid_key(f"the admin port needs the admin key: send it as 'Authorization: Bearer {ADMIN_PREFIX}…'")
        if hmac.compare_digest(_digest(credential), digest):
            return
        is_of_tenant = credential.startswith(PREFIX)
        ADMIN_REFUSALS.labels("tenant_key" if is_of_tenant else "wrong").inc()
        if is_of_tenant:
            raise invalid_key("the admin port takes the admin key, and no API key of a tenant")
        raise invalid_key("this is not the admin key of this service")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
