"""Each new constraint is compiled in a process of its own first, with a deadline that holds."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from vllm.tokenizers import get_tokenizer

from api.structured.compilers import Compilers
from api.structured.tokens import tokens_of
from cluster.config.repository import REPO_ROOT
from cluster.config.structured_output import StructuredOutputConfig
from cluster.errors import InvalidRequest, TooManyRequests
from tests.edge.grammars.inputs import HONEST, SLOW_TO_COMPILE, mutual

COMPILE_S = 0.4
MAX_WAITING = 4


def tag_of(schema: dict[str, object]) -> str:
    return json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def bomb(number: int) -> str:
    """A new one each time."""
    return json.dumps(SLOW_TO_COMPILE | {"title": str(number)})


@pytest_asyncio.fixture
async def compilers() -> AsyncIterator[Compilers]:
    tokenizer = get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo"))
    config = StructuredOutputConfig(compile_s=COMPILE_S, max_waiting=MAX_WAITING)
    made = Compilers(config, lambda: tokens_of(tokenizer, len(tokenizer), True))
    yield made
    await made.close()


@pytest.mark.parametrize("schema", HONEST.values(), ids=HONEST)
async def test_honest_schema_compiles(compilers, schema):
    await compilers.check("json", json.dumps(schema), "a")
    assert compilers.num_killed == 0


async def test_constraint_that_compiles_too_long_is_refused_and_its_process_replaced(compilers):
    with pytest.raises(InvalidRequest, match="too long to compile"):
        await compilers.check("json", bomb(0), "a")
    assert compilers.num_killed == 1
    await compilers.check("json", '{"type": "integer"}', "a")


async def test_tag_of_a_tool_that_compiles_too_long_is_refused(compilers):
    with pytest.raises(InvalidRequest, match="to compile"):
        await compilers.check("structural_tag", tag_of(mutual(300)), "a")
    await compilers.check("structural_tag", tag_of(HONEST["tree"]), "a")


async def test_constraint_that_takes_too_much_memory_is_refused():
    config = StructuredOutputConfig(compile_s=20.0, compile_memory_mib=64)
    tokenizer = get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo"))
    compilers = Compilers(config, lambda: tokens_of(tokenizer, len(tokenizer), False))
    large = {"type": "integer", "multipleOf": 999_983}
    with pytest.raises(InvalidRequest, match=r"too much memory|MemoryError"):
        await compilers.check("json", json.dumps(large), "a")
    await compilers.check("json", '{"type": "integer"}', "a")
    await compilers.close()


async def test_verdict_is_remembered(compilers):
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            await compilers.check("json", bomb(0), "a")
        with pytest.raises(InvalidRequest, match="is invalid"):
            await compilers.check("regex", "(a", "a")
    assert compilers.num_killed == 1


async def test_client_that_leaves_and_comes_again_starts_no_second_trial(compilers):
    for _ in range(3):
        asked = asyncio.create_task(compilers.check("json", bomb(0), "a"))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    with pytest.raises(InvalidRequest):
        await compilers.check("json", bomb(0), "a")
    assert compilers.num_killed == 1


async def test_tenant_with_many_new_constraints_holds_up_itself_alone(compilers):
    flood = [asyncio.create_task(compilers.check("json", bomb(n), "bad")) for n in range(MAX_WAITING + 2)]
    await compilers.check("json", '{"type": "integer"}', "good")  # starts the second process
    began_at = time.monotonic()
    await compilers.check("json", json.dumps(HONEST["person"]), "good")
    took_s = time.monotonic() - began_at
    assert not all(task.done() for task in flood)
    ended = await asyncio.gather(*flood, return_exceptions=True)
    assert took_s < 1.0
    kinds = [type(error) for error in ended]
    assert kinds.count(TooManyRequests) == 2
    assert kinds.count(InvalidRequest) == MAX_WAITING


def test_trial_keeps_the_limit_of_its_operator():
    """As under a hard `ulimit -v`, where a higher limit cannot be set."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); "
    code += "from api.structured.trial import _limit_memory; "
    code += "_limit_memory(1 << 33); print(resource.getrlimit(resource.RLIMIT_AS)); "
    code += "_limit_memory(resource.RLIM_INFINITY); print(resource.getrlimit(resource.RLIMIT_AS))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split("\n")[:2] == [f"({1 << 33}, {1 << 40})", f"({1 << 40}, {1 << 40})"]
