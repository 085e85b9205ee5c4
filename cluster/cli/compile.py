"""`baton compile`: makes machine code of the modules that decide (cluster/compiled.py), with mypyc and a C compiler.

It is built in a folder of its own and moved to its place as a whole: a build that was interrupted leaves nothing that
is imported. Where it cannot be built, the sources run, several times slower and otherwise the same.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from cluster import compiled

OPTIMIZATION = "2"
FLAGS = ("-fno-semantic-interposition", "-ffp-contract=off")
"""Of the C compiler: calls within the library may be inlined, a tenth faster; figures are rounded as Python does."""
MADE_WITH = "made-with"
"""A file: by what the code was made."""
BUILDING = "building-"
"""How names of folders begin that are of no use once their build is over."""
NUM_KEPT = 4
"""Builds of the last versions of the sources."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "compile",
        help="compile what decides to machine code: several times as many placements a second",
        description="Compiles the modules that decide about placements with mypyc, once for each version of them: a "
        "minute. Without a C compiler it says so and ends with 0: the sources run, only slower. Sources that are "
        f"edited run as they are until the next time. {compiled.SWITCH}=1 in the environment has the sources run.",
    )
    parser.set_defaults(run=_compile)


def _compile(_: argparse.Namespace) -> int:
    try:
        with _alone():
            return _compile_if_needed(compiled.folder())
    except OSError as error:
        return _not_compiled(f"{compiled.builds()} cannot be written ({error.strerror})")


def _compile_if_needed(target: Path) -> int:
    if is_built(target):
        print(f"The decisions are compiled already ({_shown(target)}).")
        return 0
    missing = what_is_missing()
    if missing is not None:
        return _not_compiled(missing)
    print(f"Compiling {len(compiled.MODULES)} modules that decide (once for their version; a minute)", flush=True)
    return _build_at(target)


def _not_compiled(why: str) -> int:
    print(f"baton: the decisions are not compiled: {why}. They run from their sources, slower.", file=sys.stderr)
    return 0


def _build_at(target: Path) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=compiled.builds()) as building:
        made = subprocess.run(
            [sys.executable, "-m", __name__, building],
            cwd=compiled.ROOT,
            env={**os.environ, compiled.SWITCH: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if made.returncode:
            print(f"{made.stdout}\nbaton: the decisions could not be compiled.", file=sys.stderr)
            return 1
        if compiled.folder() != target:
            print("baton: the sources have changed meanwhile: they are not compiled.", file=sys.stderr)
            return 1
        if target.exists():  # made with something else, or damaged
            target.rename(Path(building) / "before")
        (Path(building) / "lib").rename(target)
        for other in _oldest(target):
            other.rename(Path(building) / other.name)
    print(f"Compiled in {time.monotonic() - began:.0f} s ({_shown(target)}).")
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """Nobody else builds meanwhile, and nothing is left of builds that were killed."""
    compiled.builds().mkdir(parents=True, exist_ok=True)
    with (compiled.builds() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in compiled.builds().glob(f"{BUILDING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def what_is_missing() -> str | None:
    """For a build; None: nothing."""
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return "mypyc is not installed (it comes with mypy)"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "the headers of this Python are not installed"
    return None


def is_built(target: Path) -> bool:
    """Whole and loadable, by the mypyc that is installed, as it would be built now."""
    made_with = target / MADE_WITH
    if not made_with.is_file():
        return False
    if find_spec("mypyc") is not None and made_with.read_text() != _made_with():
        return False
    if not all(compiled.file_of(module, target).is_file() for module in compiled.MODULES):
        return False
    try:
        compiled.load_library(compiled.file_of(compiled.LIBRARY, target))
    except ImportError:
        return False
    return True


def _oldest(newest: Path) -> list[Path]:
    """What other versions of the sources were compiled to, but for the last few: who goes back to one finds it."""
    others = [other for other in compiled.builds().iterdir() if (other / MADE_WITH).is_file() and other != newest]
    return sorted(others, key=lambda other: other.stat().st_mtime)[: -NUM_KEPT + 1]


def _shown(target: Path) -> Path:
    return target.relative_to(compiled.ROOT)


def _made_with() -> str:
    from mypy.version import __version__

    return f"mypyc {__version__}, -O{OPTIMIZATION} {' '.join(FLAGS)}"


def build(building: Path) -> None:
    """Into its `lib`."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    sources = [str(compiled.source_of(module).relative_to(compiled.ROOT)) for module in compiled.MODULES]
    cache = ["--cache-dir", str(building / "types")]
    extensions = mypycify(
        [*cache, *sources], opt_level=OPTIMIZATION, debug_level="0", target_dir=str(building / "c"), group_name="baton"
    )
    for extension in extensions:
        extension.extra_compile_args.extend(FLAGS)
    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(building / "lib"), str(building / "objects")
    command.ensure_finalized()
    command.run()
    (building / "lib" / MADE_WITH).write_text(_made_with())


if __name__ == "__main__":
    build(Path(sys.argv[1]))
