"""Connections are shared out: whatever one tenant wants, the others get theirs."""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.state.postgres.fair_shares import Shares


class Users:
    """Who has one, and who waits."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self.holding: Counter[str] = Counter()
        self.order: list[str] = []
        self._tasks: dict[int, tuple[str, asyncio.Task[None], asyncio.Event]] = {}

    def want(self, number: int, tenant: str) -> None:
        done = asyncio.Event()
        self._tasks[number] = tenant, asyncio.create_task(self._use(tenant, done)), done

    async def _use(self, tenant: str, done: asyncio.Event) -> None:
        async with self._shares.one(tenant):
            self.holding[tenant] += 1
            self.order.append(tenant)
            try:
                await done.wait()
            finally:
                self.holding[tenant] -= 1

    def end(self, number: int) -> None:
        self._tasks[number][2].set()

    def leave(self, number: int) -> None:
        self._tasks[number][1].cancel()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    def num_waiting(self, tenant: str) -> int:
        there = sum(who == tenant and not task.done() for who, task, _ in self._tasks.values())
        return there - self.holding[tenant]

    async def close(self) -> None:
        for _, _, done in self._tasks.values():
            done.set()
        if self._tasks:
            await asyncio.wait([task for _, task, _ in self._tasks.values()])


async def test_tenant_that_wants_all_leaves_half_of_them() -> None:
    users = Users(Shares(4, 2))
    for number in range(10):
        users.want(number, "greedy")
    users.want(10, "modest")
    await users.settle()
    assert users.holding == {"greedy": 2, "modest": 1}
    await users.close()


async def test_whoever_has_least_is_served_next() -> None:
    users = Users(Shares(2, 2))
    for number, tenant in enumerate(["greedy", "greedy", "greedy", "greedy", "late"]):
        users.want(number, tenant)
    await users.settle()
    users.end(0)
    await users.settle()
    assert users.order == ["greedy", "greedy", "late"]
    await users.close()


async def test_equals_take_turns() -> None:
    users = Users(Shares(1, 1))
    for number, tenant in enumerate("aaabbb"):
        users.want(number, tenant)
    await users.settle()
    await users.close()
    assert users.order == list("ababab")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["end", "leave"]), st.integers(0, 30)),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 4), st.integers(1, 4))
def test_none_is_lost_and_nobody_waits_for_one_that_is_free(
    steps: list[tuple[Any, ...]], number: int, most_of_one: int
) -> None:
    async def run() -> None:
        users, wanted = Users(Shares(number, most_of_one)), 0
        for step, which in steps:
            if step == "want":
                users.want(wanted, which)
                wanted += 1
            elif which < wanted:
                (users.end if step == "end" else users.leave)(which)
            if which != 7:  # else several at once
                await users.settle()
                assert users.holding.total() <= number and all(n <= most_of_one for n in users.holding.values())
                is_free = users.holding.total() < number
                assert not any(is_free and users.num_waiting(t) and users.holding[t] < most_of_one for t in "abc")
        await users.close()
        assert users.holding.total() == 0

    asyncio.run(run())
