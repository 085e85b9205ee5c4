"""Each new constraint is first compiled in a separate process, which keeps its deadline."""

import asyncio
import json
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from vllm.tokenizers import get_tokenizer

from api.structured import compilers as module
from api.structured.compilers import Compilers
from api.structured.tokens import BYTES, tokens_of
from cluster.config.structured_output import StructuredOutputConfig
from cluster.errors import InvalidRequest, Overloaded, TooManyRequests
from cluster.metrics.requests import CONSTRAINTS
from cluster.repository import REPO_ROOT
from tests.hostile.grammars.inputs import HONEST, SLOW_TO_COMPILE, Schema, mutual

COMPILE_S = 0.4
MAX_WAITING = 4


def tag_of(schema: dict[str, object]) -> str:
    return json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}})


def bomb(number: int) -> str:
    """A constraint that takes too long to compile, and a new one for each number."""
    return json.dumps(SLOW_TO_COMPILE | {"title": str(number)})


def results() -> Counter[str]:
    """The trials of this process until now, by their result."""
    samples = [sample for family in CONSTRAINTS.collect() for sample in family.samples]
    return Counter({sample.labels["result"]: int(sample.value) for sample in samples})


@pytest_asyncio.fixture
async def compilers() -> AsyncIterator[Compilers]:
    tokenizer = get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo"))
    config = StructuredOutputConfig(compile_s=COMPILE_S, max_waiting=MAX_WAITING)
    made = Compilers(config, lambda: tokens_of(tokenizer, len(tokenizer), True))
    yield made
    await made.close()


@pytest.mark.parametrize("schema", HONEST.values(), ids=HONEST)
async def test_honest_schema_compiles(compilers: module.Compilers, schema: Schema) -> None:
    before = results()
    await compilers.check("json", json.dumps(schema), "a")
    assert results() - before == {"compiled": 1}


async def test_constraint_that_compiles_too_long_is_refused_and_its_process_replaced(
    compilers: module.Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is on CPU time, so that on a busy machine a constraint is not refused for the time of further
    processes.
    """
    monkeypatch.setattr(module, "WALL_S", 1000.0)
    with pytest.raises(InvalidRequest, match="too long to compile"):
        await compilers.check("json", bomb(0), "a")
    await compilers.check("json", '{"type": "integer"}', "a")


def test_process_of_a_constraint_that_compiles_too_long_is_ended_by_the_kernel() -> None:
    """The kernel ends the process after its CPU time, whatever the library does."""
    setup = {"compile_s": 0.5, "memory_bytes": 4 << 30, "tokenizer": BYTES, "n_vocab": None, "eos": None}
    lines = [setup | {"tag_tokens": ""}, ["json", '{"type": "integer"}'], ["json", bomb(0)]]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = subprocess.run(
        [sys.executable, "-m", "api.structured.trial"],
        input="\n".join(map(json.dumps, lines)) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (told.returncode, told.stdout) == (-signal.SIGPROF, "null\nnull\n")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3.0


async def test_constraint_that_could_not_be_tried_in_time_is_not_taken_for_a_costly_one(
    compilers: module.Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is stopped, as on a machine that is too busy. It has used up neither its CPU time nor its memory."""
    await compilers.check("json", '{"type": "integer"}', "a")
    (trial,) = compilers._idle
    trial._process.send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(module, "WALL_S", 0.2)
        patch.setattr(module, "WALL_FACTOR", 0.0)
        with pytest.raises(Overloaded):
            async with asyncio.timeout(20):
                await compilers.check("json", '{"type": "string"}', "a")
    assert trial._process.returncode == -signal.SIGKILL
    await compilers.check("json", '{"type": "string"}', "a")


async def test_failure_to_prepare_is_not_remembered() -> None:
    made = Compilers(StructuredOutputConfig(compile_s=COMPILE_S), _failing_once())
    with pytest.raises(OSError, match="too many open files"):
        await made.check("json", '{"type": "integer"}', "a")
    await made.check("json", '{"type": "integer"}', "a")
    await made.close()


def _failing_once() -> Callable[[], dict[str, object]]:
    tokenizer = get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo"))
    failures = [OSError("too many open files")]

    def tokens() -> dict[str, object]:
        if failures:
            raise failures.pop()
        return tokens_of(tokenizer, len(tokenizer), True)

    return tokens


async def test_process_that_somebody_has_killed_says_nothing_of_the_next_constraint(
    compilers: module.Compilers,
) -> None:
    await compilers.check("json", '{"type": "integer"}', "a")
    (idle,) = compilers._idle
    idle._process.kill()
    await idle._process.wait()
    await compilers.check("json", '{"type": "string"}', "a")


async def test_constraint_whose_process_somebody_kills_is_not_taken_for_a_costly_one(
    compilers: module.Compilers,
) -> None:
    await compilers.check("json", '{"type": "integer"}', "a")
    (idle,) = compilers._idle
    trying = asyncio.create_task(compilers.check("json", bomb(0), "a"))
    while compilers._idle:  # noqa: ASYNC110  # until the process is taken
        await asyncio.sleep(0)
    idle._process.kill()
    with pytest.raises(Overloaded):
        await trying
    with pytest.raises(InvalidRequest, match="too long to compile"):
        await compilers.check("json", bomb(0), "a")


async def test_tag_of_a_tool_that_compiles_too_long_is_refused(
    compilers: module.Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WALL_S", 100.0)  # loading the library takes long on a busy machine
    with pytest.raises(InvalidRequest, match="to compile"):
        await compilers.check("structural_tag", tag_of(mutual(300)), "a")
    await compilers.check("structural_tag", tag_of(HONEST["tree"]), "a")


async def test_constraint_that_takes_too_much_memory_is_refused() -> None:
    config = StructuredOutputConfig(compile_s=20.0, compile_memory_mib=64)
    tokenizer = get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo"))
    compilers = Compilers(config, lambda: tokens_of(tokenizer, len(tokenizer), False))
    large = {"type": "integer", "multipleOf": 999_983}
    with pytest.raises(InvalidRequest, match=r"too much memory|MemoryError"):
        await compilers.check("json", json.dumps(large), "a")
    await compilers.check("json", '{"type": "integer"}', "a")
    await compilers.close()


async def test_verdict_is_remembered(compilers: module.Compilers) -> None:
    before = results()
    for _ in range(3):
        with pytest.raises(InvalidRequest):
            await compilers.check("json", bomb(0), "a")
        with pytest.raises(InvalidRequest, match="is invalid"):
            await compilers.check("regex", "(a", "a")
    assert results() - before == {"too_costly": 1, "invalid": 1}


async def test_client_that_leaves_and_comes_again_starts_no_second_trial(compilers: module.Compilers) -> None:
    await compilers.check("json", '{"type": "integer"}', "a")  # starts the process
    before = results()
    for _ in range(3):
        asked = asyncio.create_task(compilers.check("json", bomb(0), "a"))
        while compilers._idle:  # noqa: ASYNC110  # until the trial has begun, which sets no event
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    with pytest.raises(InvalidRequest):
        await compilers.check("json", bomb(0), "a")
    assert results() - before == {"too_costly": 1}


async def test_tenant_with_many_new_constraints_holds_up_itself_alone() -> None:
    """The tenant's own further constraints wait, and those of a second tenant do not."""
    tokenizer = get_tokenizer(str(REPO_ROOT / "conf/models/baton-demo"))
    config = StructuredOutputConfig(compile_s=60.0, compile_memory_mib=4096, max_waiting=MAX_WAITING)
    compilers = Compilers(config, lambda: tokens_of(tokenizer, len(tokenizer), False))
    flood = [asyncio.create_task(compilers.check("json", bomb(n), "bad")) for n in range(MAX_WAITING)]
    while len(compilers._trials) < MAX_WAITING:  # noqa: ASYNC110  # until all constraints wait, which sets no event
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(10):
            await compilers.check("json", json.dumps(HONEST["person"]), "good")
            await compilers.check("json", json.dumps(HONEST["tree"]), "good")
        assert not any(task.done() for task in flood)
        with pytest.raises(TooManyRequests):
            await compilers.check("json", bomb(MAX_WAITING), "bad")
    finally:
        await compilers.close()
        await asyncio.wait(flood)


def test_trial_keeps_the_limit_of_its_operator() -> None:
    """A hard `ulimit -v` of the operator is such a limit: the process cannot set a higher one."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40)); "
    code += "from api.structured.trial import _limit_memory; "
    code += "_limit_memory(1 << 33); print(resource.getrlimit(resource.RLIMIT_AS)); "
    code += "_limit_memory(resource.RLIM_INFINITY); print(resource.getrlimit(resource.RLIMIT_AS))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split("\n")[:2] == [f"({1 << 33}, {1 << 40})", f"({1 << 40}, {1 << 40})"]
