"""The Scheduler's collector frees young cycles, walks what has survived no more, and finds old cycles in a full walk.

Each test runs in a process of its own: the settings of the collector are those of the process.
"""

import subprocess
import sys

BEGIN = """
import asyncio, gc, weakref
from router import garbage

class Cycle:
    def __init__(self):
        self.itself = self

async def until(is_true):
    async with asyncio.timeout(300):
        while not is_true():
            await asyncio.sleep(0.01)

def is_walked(one):
    return any(other is one for other in gc.get_objects())

async def main():
"""


def run(body: str) -> None:
    script = BEGIN + "".join(f"    {line}\n" for line in body.strip().splitlines()) + "\nasyncio.run(main())\n"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_young_cycle_is_freed() -> None:
    run("""
garbage.collect_rarely()
gone = weakref.ref(Cycle())
await until(lambda: gone() is None)
""")


def test_what_has_survived_a_walk_is_not_walked_again() -> None:
    run("""
garbage.collect_rarely()
kept = [[]]
assert is_walked(kept)
await until(lambda: not is_walked(kept))
""")


def test_old_cycle_is_freed_by_a_full_walk() -> None:
    run("""
garbage.YOUNG_WALK_S, garbage.FULL_WALK_S = 0.01, 0.5
garbage.collect_rarely()
cycle = Cycle()
gone = weakref.ref(cycle)
await until(lambda: not is_walked(cycle))
del cycle
await asyncio.sleep(0.05)
assert gone() is not None, "it was set aside"
await until(lambda: gone() is None)
""")
