"""What spawned processes import first."""

import multiprocessing
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest

from cluster.importing import spawned_processes_import

FIRST = "tests.unit.cluster.first_of_all"


def test_spawned_process_and_those_that_it_spawns_import_the_module_first() -> None:
    with spawned_processes_import(FIRST):
        assert names_seen(depth=2) == [FIRST, FIRST]


@pytest.mark.parametrize("fails", [True, False])
def test_main_module_is_itself_again_afterwards(fails: bool) -> None:
    before = sys.modules["__main__"].__spec__
    with suppress(OSError), spawned_processes_import(FIRST):
        assert sys.modules["__main__"].__spec__ is not before
        if fails:
            raise OSError
    assert sys.modules["__main__"].__spec__ is before


def names_seen(depth: int) -> list[str]:
    """What a spawned process has imported as its main module, and then what those below it have, down to `depth`."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=tell_names, args=(theirs, depth))
    process.start()
    seen: list[str] = ours.recv()
    process.join()
    return seen


def tell_names(asked: Connection, depth: int) -> None:
    main = sys.modules["__main__"]
    spec = main.__spec__
    own = spec.name if spec is not None and getattr(main, "IS_FIRST", False) else "another"
    asked.send([own, *(names_seen(depth - 1) if depth > 1 else [])])
