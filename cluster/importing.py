"""What spawned processes import."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec


@contextmanager
def spawned_processes_import(module: str) -> Iterator[None]:
    """Have processes that multiprocessing spawns import this module first, and those that they spawn. Without it they
    import the main module of this process first, which is the script of a Ray worker.
    """
    main = sys.modules["__main__"]
    own = main.__spec__
    main.__spec__ = ModuleSpec(module, loader=None)
    try:
        yield
    finally:
        main.__spec__ = own
