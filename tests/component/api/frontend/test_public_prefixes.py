"""Public prefixes: which prompts begin with one, and for whom its KV blocks are not those of the tenant alone."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from api.frontend.frontend import Frontend
from api.frontend.public_prefixes import PublicPrefixes
from api.identity.access import Access
from api.identity.principal import Principal
from api.identity.rights import ALL_RIGHTS
from api.identity.settings import TenantSettings
from cluster.config.tenants.public_prefixes import PublicPrefixConfig
from cluster.errors import InvalidRequest
from cluster.messages.generation import GenerateRequest
from tests.component.app_with_fakes import CHAT, COMPLETION, FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines

BLOCK_SIZE = 16
SHORT = "You answer questions of customers about parcels that are late, lost or broken, and you are brief."
LONG = f"{SHORT} " + " ".join(f"Rule {number}: a parcel of class {number} is answered in kind." for number in range(6))
KEPT = "Never name a customer. Never promise a date. Ask for the number of the parcel before anything else is said."
TENANTS = {
    "one": TenantSettings(share_prefixes=True),
    "two": TenantSettings(share_prefixes=True, weight=2.0),
    "alone": TenantSettings(),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning"),  # vLLM reads its own field
    pytest.mark.asyncio(loop_scope="module"),
]


async def identify(name: str) -> Principal:
    return Principal(tenant=name, project="p", key="k", rights=ALL_RIGHTS, settings=TENANTS[name])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("prefixes") / "kept.txt"
    path.write_text(f"{KEPT}\n")
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(file: Path) -> tuple[FakeEngines, Frontend]:
    engines = FakeEngines()
    prefixes = {"short": {"text": SHORT}, "long": {"text": LONG}, "kept": {"file": str(file)}}
    return engines, await engines.frontend(1024, public_prefixes=prefixes)


@pytest.fixture
def engines(started: tuple[FakeEngines, Frontend]) -> FakeEngines:
    started[0].reset()
    return started[0]


@pytest_asyncio.fixture(loop_scope="module")
async def client(started: tuple[FakeEngines, Frontend], engines: FakeEngines) -> AsyncIterator[httpx.AsyncClient]:
    access = Access(identify, is_required=True)
    async with a_client(an_app(started[1], FakeCluster(), access=access)) as client:
        yield client


async def ask(client: httpx.AsyncClient, tenant: str, system: str | None, **fields: Any) -> httpx.Response:
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": "Where is the parcel that I sent to my aunt in Paris last week?"})
    body = {"model": "baton-demo", "messages": messages, **fields}
    return await client.post(CHAT, json=body, headers={"authorization": f"Bearer {tenant}"})


async def asked(client: httpx.AsyncClient, engines: FakeEngines, tenant: str, system: str | None) -> GenerateRequest:
    response = await ask(client, tenant, system)
    assert response.status_code == 200, response.text
    return engines.requests[-1]


def common_tokens(engines: FakeEngines, text: str) -> int:
    """The tokens of a system message, as the template of the demo model writes it, in whole KV blocks."""
    tokens = engines.tokenizer.encode(f"<|im_start|>system\n{text}<|im_end|>\n<|im_start|>user\n").ids
    return len(tokens) // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("text", [SHORT, LONG, KEPT], ids=["short", "long", "of a file"])
async def test_tenants_that_share_have_the_public_blocks_in_common_and_no_others(
    client: httpx.AsyncClient, engines: FakeEngines, text: str
) -> None:
    one, two = [await asked(client, engines, tenant, text) for tenant in ("one", "two")]
    num_public = common_tokens(engines, text)
    assert one.num_public_tokens == two.num_public_tokens == num_public >= BLOCK_SIZE
    assert (one.cache_salt, two.cache_salt) == ("one", "two")
    of_one, of_two = engines.block_hashes
    shared = num_public // BLOCK_SIZE
    assert len(of_one) > shared and of_one[:shared] == of_two[:shared]
    assert set(of_one[shared:]).isdisjoint(of_two)


async def test_tenant_that_has_not_opted_in_shares_nothing(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    await asked(client, engines, "one", LONG)
    alone = await asked(client, engines, "alone", LONG)
    assert (alone.num_public_tokens, alone.cache_salt) == (0, "alone")
    assert set(engines.block_hashes[0]).isdisjoint(engines.block_hashes[1])


@pytest.mark.parametrize(
    "system",
    [None, "You are a bird.", KEPT[::-1], f" {KEPT}", KEPT.upper(), f"{LONG} The password is swordfish."],
    ids=["no system prompt", "another one", "as long", "with a blank", "in capitals", "with an addition"],
)
async def test_prompt_that_begins_otherwise_has_no_public_block(
    client: httpx.AsyncClient, engines: FakeEngines, system: str | None
) -> None:
    one, two = [await asked(client, engines, tenant, system) for tenant in ("one", "two")]
    assert one.num_public_tokens == two.num_public_tokens == 0
    assert set(engines.block_hashes[0]).isdisjoint(engines.block_hashes[1])


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"cache_salt": "two"}, 400),
        ({"vllm_xargs": {"baton_public_tokens": 64}}, 400),
        ({"kv_transfer_params": {"baton_public_tokens": 64}}, 400),
        ({"num_public_tokens": 64}, 400),
        ({"share_prefixes": True}, 400),
        ({"extra_args": {"baton_public_tokens": 64}}, 400),
    ],
    ids=str,
)
async def test_client_cannot_choose_what_is_public(
    client: httpx.AsyncClient, engines: FakeEngines, fields: Mapping[str, Any], status: int
) -> None:
    response = await ask(client, "alone", LONG, **fields)
    assert response.status_code == status, response.text
    assert engines.requests == []


async def test_completion_is_compared_by_its_tokens(client: httpx.AsyncClient, engines: FakeEngines) -> None:
    prompt = (await asked(client, engines, "one", SHORT)).prompt_token_ids
    body = {"model": "baton-demo", "prompt": [prompt, prompt[1:]]}
    response = await client.post(COMPLETION, json=body, headers={"authorization": "Bearer two"})
    assert response.status_code == 200, response.text
    found = {len(request.prompt_token_ids): request.num_public_tokens for request in engines.requests[1:]}
    assert found == {len(prompt): common_tokens(engines, SHORT), len(prompt) - 1: 0}


@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ({"text": ""}, "the prefix has 4 tokens, and a KV block has 16"),
        ({"text": "word " * 400}, "maximum context length"),
        ({"file": "conf/there-is-none.txt"}, "No such file"),
    ],
    ids=["shorter than a block", "longer than the model reads", "no file"],
)
async def test_prefix_that_cannot_be_shared_is_refused_at_the_start(prefix: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=r"public_prefixes\.brief: .*") as refused:
        await FakeEngines().frontend(256, public_prefixes={"brief": prefix})
    assert why in str(refused.value)


async def test_template_that_refuses_a_system_message_is_an_error_of_the_config() -> None:
    async def render(messages: list[dict[str, Any]]) -> list[int]:
        raise InvalidRequest("System role not supported")

    with pytest.raises(ValueError, match=r"public_prefixes\.a: System role not supported"):
        await PublicPrefixes.registered({"a": PublicPrefixConfig(text="x")}, 4, render)


async def test_file_that_is_no_text_is_an_error_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\xfe\xff")

    async def render(messages: list[dict[str, Any]]) -> list[int]:
        return []

    with pytest.raises(ValueError, match=r"public_prefixes\.a: .*utf-8"):
        await PublicPrefixes.registered({"a": PublicPrefixConfig(file=str(tmp_path / "picture"))}, 4, render)


@given(
    prefixes=st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=6), max_size=4),
    prompt=st.lists(st.integers(0, 1), max_size=8),
)
async def test_longest_prefix_counts_in_whole_blocks(prefixes: list[list[int]], prompt: list[int]) -> None:
    whole = [len(prefix) // 2 * 2 for prefix in prefixes if prompt[: len(prefix)] == prefix]
    assert PublicPrefixes(prefixes, 2).num_public(prompt) == max(whole, default=0)
