"""What callers notice of a Redis that comes and goes: nothing but that it knows nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from api.state.redis import client as module
from api.state.redis.client import TIMEOUT_S, RedisClient, RedisScript
from tests.component.killable_redis import KillableRedis


@pytest.fixture
async def volatile(killable_redis: KillableRedis, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisClient]:
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.05)
    made = RedisClient()
    made.reach(killable_redis.url)
    yield made
    await made.close()


async def answer(volatile: RedisClient, key: str) -> bytes | None:
    """Once it has one."""
    for _ in range(1000):
        if (answers := await volatile.run(("GET", key))) is not None:
            return answers[0]
        await asyncio.sleep(0.01)
    raise TimeoutError


async def test_answers_come_in_the_order_of_the_commands(volatile: module.RedisClient) -> None:
    assert await volatile.run(("SET", "a", 1), ("INCR", "a"), ("GET", "a")) == [True, 2, b"2"]


async def test_callers_at_the_same_time_get_their_own_answers(volatile: module.RedisClient) -> None:
    await volatile.run(*(("SET", f"n{number}", number) for number in range(1000)))
    asked = (volatile.run(("GET", f"n{number}"), ("STRLEN", f"n{number}")) for number in range(1000))
    for number, answers in enumerate(await asyncio.gather(*asked)):
        assert answers == [str(number).encode(), len(str(number))]


async def test_long_calls_at_the_same_time_get_their_own_answers(volatile: module.RedisClient) -> None:
    """Some of them are larger than a round trip."""
    script = RedisScript.of("return {#ARGV, ARGV[1]}")
    sizes = [1, module.MAX_PARTS + 1, 50, module.MAX_PARTS // 2, module.MAX_PARTS // 2, 3] * 5
    answers = await asyncio.gather(*(volatile.run_script(script, [], *[size] * size) for size in sizes))
    assert answers == [[size, str(size).encode()] for size in sizes]


async def test_before_it_is_reached_nothing_is_known() -> None:
    unreached = RedisClient()
    assert await unreached.run(("GET", "a")) is None
    await unreached.close()


async def test_killed_redis_knows_nothing_and_is_used_again_when_it_is_back(
    volatile: module.RedisClient, killable_redis: KillableRedis, caplog: pytest.LogCaptureFixture
) -> None:
    await volatile.run(("SET", "a", 1))
    killable_redis.kill()
    for _ in range(3):
        assert await volatile.run(("GET", "a")) is None
        await asyncio.sleep(0.06)
    killable_redis.start()
    assert await answer(volatile, "a") is None
    assert [record.message.partition(",")[0] for record in caplog.records] == ["Redis is away", "Redis is back"]


async def test_redis_that_hangs_holds_nobody_up_for_long(
    volatile: module.RedisClient, killable_redis: KillableRedis
) -> None:
    await volatile.run(("SET", "a", "x"))
    killable_redis.hold_up()
    async with asyncio.timeout(10 * TIMEOUT_S):
        assert await asyncio.gather(*(volatile.run(("GET", "a")) for _ in range(500))) == [None] * 500
    killable_redis.let_go_on()


async def test_answer_that_came_too_late_is_not_taken_for_another_one(
    volatile: module.RedisClient, killable_redis: KillableRedis
) -> None:
    await volatile.run(("SET", "a", "x"), ("SET", "b", "y"))
    killable_redis.hold_up()
    assert await volatile.run(("GET", "a")) is None
    killable_redis.let_go_on()
    assert await answer(volatile, "b") == b"y"


async def test_caller_that_is_cancelled_leaves_the_answers_of_the_others(volatile: module.RedisClient) -> None:
    await volatile.run(*(("SET", f"n{number}", number) for number in range(100)))
    asking = [asyncio.create_task(volatile.run(("GET", f"n{number}"))) for number in range(100)]
    await asyncio.sleep(0)
    for task in asking[::2]:
        task.cancel()
    assert await asyncio.gather(*asking[1::2]) == [[str(number).encode()] for number in range(1, 100, 2)]


async def test_refused_command_concerns_its_caller_alone(
    volatile: module.RedisClient, caplog: pytest.LogCaptureFixture
) -> None:
    refused, fine = await asyncio.gather(volatile.run(("NONSENSE",)), volatile.run(("SET", "a", 1)))
    assert (refused, fine) == (None, [True])
    assert "NONSENSE" in caplog.text


async def test_script_is_run_by_its_hash_and_sent_again_to_a_redis_that_has_forgotten_it(
    volatile: module.RedisClient, killable_redis: KillableRedis, caplog: pytest.LogCaptureFixture
) -> None:
    script = RedisScript.of("return {redis.call('INCRBY', KEYS[1], ARGV[1]), ARGV[2]}")
    assert [await volatile.run_script(script, ["n"], 2, "x") for _ in range(2)] == [[2, b"x"], [4, b"x"]]
    assert await volatile.run(("SCRIPT", "EXISTS", script.sha)) == [[True]]
    killable_redis.kill()
    assert await volatile.run_script(script, ["n"], 2, "x") is None
    killable_redis.start()
    await answer(volatile, "a")
    assert await volatile.run_script(script, ["n"], 2, "x") == [2, b"x"]
    assert "NOSCRIPT" not in caplog.text


async def test_script_that_redis_refuses_has_no_answer(
    volatile: module.RedisClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert await volatile.run_script(RedisScript.of("return redis.call('NONSENSE')"), []) is None
    assert "refused" in caplog.text


def test_url_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme"):
        RedisClient().reach("localhost:6379")
