"""Whom the edge admits."""

import pytest

from api.identity.access import Access
from api.identity.admin.admin_key import ADMIN_PREFIX
from api.identity.keys import invalid_key, new_key
from api.identity.principal import ANYBODY, Principal
from api.identity.rights import ALL_RIGHTS
from api.identity.tenants import tenant_of_key
from cluster.errors import Unauthorized

KEY = new_key(bytes(range(48))).text
OWNER = Principal(tenant="0123456789abcdef", project="proj_1", key="key_1", rights=ALL_RIGHTS)


async def identify(credential: str) -> Principal:
    if credential == KEY:
        return OWNER
    raise invalid_key("it is unknown")


CLOSED, OPEN = Access(identify, is_required=True), Access(identify, is_required=False)


async def test_key_is_its_owner_wherever_it_is_sent() -> None:
    assert await CLOSED.principal(KEY) is OWNER
    assert await OPEN.principal(KEY) is OWNER


async def test_request_without_a_credential_is_refused_with_what_to_send() -> None:
    with pytest.raises(Unauthorized, match="Authorization: Bearer <key>") as refused:
        await CLOSED.principal(None)
    assert (refused.value.http_status, refused.value.code) == (401, "invalid_api_key")


@pytest.mark.parametrize("text", ["unused", "sk-alice", "sk-baton", "a.b", "a.b.c.d", KEY[1:]])
async def test_any_text_names_a_tenant_only_where_no_credential_is_required(text: str) -> None:
    assert await OPEN.principal(text) == Principal(tenant=tenant_of_key(text), project="", key="", rights=ALL_RIGHTS)
    with pytest.raises(Unauthorized):
        await CLOSED.principal(text)


@pytest.mark.parametrize(
    "text", [KEY[:-1], KEY + "0", "sk-baton-", "sk-baton-alice", "eyJhbGciOiJub25lIn0.e30.", "a.b.c"]
)
async def test_what_has_the_form_of_a_key_or_a_token_is_always_checked(text: str) -> None:
    for access in (OPEN, CLOSED):
        with pytest.raises(Unauthorized, match="unknown"):
            await access.principal(text)


async def test_admin_key_is_no_tenant_even_where_any_text_is() -> None:
    text = f"{ADMIN_PREFIX}{'k' * 40}"
    for access in (OPEN, CLOSED):
        with pytest.raises(Unauthorized, match=r"the admin key is for admin\.port") as refused:
            await access.principal(text)
        assert "kkkk" not in str(refused.value)


async def test_nobody_is_anybody_where_no_credential_is_required() -> None:
    assert await OPEN.principal(None) is ANYBODY
