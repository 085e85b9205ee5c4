"""The first API key of a service on one machine, which `baton serve` makes if there is no account yet.

The key is in a file of `state.data_dir` that its owner alone can read. It is never printed: what a terminal shows often
ends in a log.
"""

import asyncio
import os
import shlex
import tempfile
import time
from pathlib import Path

from api.identity.keys import digest
from api.identity.ports import AccountStanding
from api.identity.rights import ALL_RIGHTS
from api.state.lifecycle import ChatState
from api.state.postgres.accounts.account_stores import AccountStores
from api.state.postgres.accounts.api_keys import KeyTerms
from api.state.postgres.accounts.rows import TenantAccount
from cluster.config.application import AppConfig
from cluster.config.environment import DATABASE_URL_VARIABLE
from cluster.errors import ServingError
from cluster.repository import REPO_ROOT
from cluster.services.failure import ServiceFailed

KEY_FILE = "api-key"
TENANT, KEY, ACTOR = "local", "first key", "baton serve"
"""Names of the tenant and of its key, and who has made them."""
WITHOUT_KEY = (
    "Each request needs an API key: `baton tenant create` and `baton key create` make one (docs/tenants.md).\n"
)


def how_to_send_a_key(config: AppConfig, *, is_on_this_machine: bool) -> str:
    """What a user is told about API keys when the service is ready. Makes the first key if there is no account yet.

    `is_on_this_machine`: whether the ingress runs here. If not, an embedded PostgreSQL is elsewhere, too.
    """
    if not config.identity.required:
        return ""
    is_embedded = not (os.environ.get(DATABASE_URL_VARIABLE) or config.state.database_url)
    if not (is_embedded and is_on_this_machine):
        return WITHOUT_KEY
    file = REPO_ROOT / config.state.data_dir / KEY_FILE
    try:
        has_key = asyncio.run(_has_key(config, file))
    except (OSError, ValueError, RuntimeError, ServiceFailed, ServingError) as error:
        return f"{WITHOUT_KEY}The first one could not be made: {error}\n"
    if not has_key:
        return WITHOUT_KEY
    return (
        f"Each request needs an API key. The first one is in {file}. For OpenAI's clients:\n\n"
        f'  export OPENAI_API_KEY="$(cat {shlex.quote(str(file))})"\n'
    )


async def _has_key(config: AppConfig, file: Path) -> bool:
    state = ChatState(config.state, serves=True)
    try:
        await state.look()
        return await keep_first_key(state, file)
    finally:
        await state.close()


async def keep_first_key(state: ChatState, file: Path) -> bool:
    """Make the first key, if there is no account yet, and write it into the file. Returns whether the file has a key
    that can be used. Raises ServingError, OSError.
    """
    text = await asyncio.to_thread(_text_in, file)
    if text and await _works(state, text):
        return True
    accounts = state.accounts()
    tenant = await _tenant_without_keys(accounts)
    if tenant is None:
        return False
    terms = KeyTerms(name=KEY, rights=ALL_RIGHTS)
    issued = await accounts.keys.create(tenant.id, terms, ACTOR)
    await asyncio.to_thread(_write, file, issued.text)
    return True


async def _works(state: ChatState, text: str) -> bool:
    key = (await state.known_accounts.look_up([digest(text)])).get(digest(text))
    if key is None or key.is_revoked or key.standing is not AccountStanding.ACTIVE:
        return False
    return key.expires_at is None or time.time() < key.expires_at


async def _tenant_without_keys(accounts: AccountStores) -> TenantAccount | None:
    """The tenant of the first key, which is made if there is none. None if there are other tenants or keys: the first
    one was made before.
    """
    found = (await accounts.tenants.page(None, 2)).data
    if not found:
        return (await accounts.tenants.create(TENANT, ACTOR))[0]
    (first, *others) = found
    is_unfinished = first.name == TENANT and not others and not (await accounts.keys.page(first.id, None, None, 1)).data
    return first if is_unfinished else None


def _text_in(file: Path) -> str:
    """Empty if there is no file."""
    return file.read_text().strip() if file.exists() else ""


def _write(file: Path, text: str) -> None:
    """The file is there with the whole text, or as it was before."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f"{file.name}.")  # which its owner alone can read
    with os.fdopen(descriptor, "w") as new:
        new.write(f"{text}\n")
    os.replace(name, file)
