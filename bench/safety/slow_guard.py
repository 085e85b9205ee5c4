"""A guard that answers after a fixed time, in a process of its own: its work is not in what is measured.

`python -m bench.safety.slow_guard SECONDS` prints its URL, then the number of its calls for each line that it reads,
and ends with its input.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from typing import Any, Self

from cluster.repository import REPO_ROOT
from tests.component.api.safety.guards.fake_guard import NONSENSE_WORD, TOO_LONG_WORD, UNSAFE_WORD, FakeGuard

DIALECT = "moderations"


class SlowGuard:
    """The process, seen from the bench."""

    def __init__(self, delay_s: float) -> None:
        """`delay_s`: of every answer."""
        self._delay_s = delay_s

    async def __aenter__(self) -> Self:
        command = [sys.executable, "-m", "bench.safety.slow_guard", str(self._delay_s)]
        self._process = await asyncio.create_subprocess_exec(*command, cwd=REPO_ROOT, stdin=PIPE, stdout=PIPE)
        self._url = await self._line()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    @property
    def config(self) -> dict[str, Any]:
        """The section `guard:` of a config."""
        return {"url": self._url, "model": "slow", "dialect": DIALECT}

    async def num_calls(self) -> int:
        """Since its start."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return int(await self._line())

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


def clears(text: str) -> bool:
    """Whether the guard lets a text pass."""
    return not any(word in text for word in (UNSAFE_WORD, NONSENSE_WORD, TOO_LONG_WORD))


async def serve(delay_s: float) -> None:
    async with FakeGuard(DIALECT) as guard:
        guard.delay_s = delay_s
        print(guard.url, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(guard.num_calls, flush=True)


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1])))
