"""Imports of much at once, in this process and in those that it spawns."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector while modules are imported: it would walk their objects again and again, and nearly
    all of them stay. Importing vLLM takes a fifth less CPU so.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
