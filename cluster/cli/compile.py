"""`baton compile`: compiles the modules that placement runs through (cluster/compiled.py) to machine code, with mypyc
and a C compiler.

The build runs in a temporary folder, which is renamed at the end: no part of an interrupted build is ever imported.
Without a build, the sources run, several times slower and otherwise the same.
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
"""Optimization level of mypyc and of the C compiler."""
FLAGS = ("-fno-semantic-interposition", "-ffp-contract=off")
"""Flags of the C compiler: calls inside the library may be inlined, which is a tenth faster, and floating-point results
are rounded as in Python.
"""
MADE_WITH = "made-with"
"""Name of the file that names the compiler and the flags of a build."""
BUILDING = "building-"
"""Prefix of the folders of running builds. Such a folder is useless once its build has ended."""
NUM_KEPT = 4
"""Builds of the latest versions of the sources that are kept. More takes disk space; fewer compiles again when an
operator returns to an earlier version.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compiles the modules of placement and screening with mypyc, once for each version of the "
        "sources. A build takes a minute. Without a C compiler, the command prints what is missing and ends with 0: "
        "the sources run, only slower. Edited sources run uncompiled until the next build. "
        f"{compiled.SWITCH}=1 in the environment makes the sources run."
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
        print(f"The modules of placement and screening are already compiled ({_shown(target)}).")
        return 0
    missing = what_is_missing()
    if missing is not None:
        return _not_compiled(missing)
    print(f"Compiling {len(compiled.MODULES)} modules (once per version of the sources; a minute)", flush=True)
    return _build_at(target)


def _not_compiled(why: str) -> int:
    print(
        f"baton: the modules of placement and screening are not compiled: {why}. Their sources run, slower.",
        file=sys.stderr,
    )
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
            print(
                f"{made.stdout}\nbaton: the modules of placement and screening could not be compiled.", file=sys.stderr
            )
            return 1
        if compiled.folder() != target:
            print(
                "baton: the sources changed during the build: the modules of placement and screening are not compiled.",
                file=sys.stderr,
            )
            return 1
        if target.exists():  # an existing build was made with another compiler or flags, or is damaged
            target.rename(Path(building) / "before")
        (Path(building) / "lib").rename(target)
        for other in _oldest(target):
            other.rename(Path(building) / other.name)
    print(f"Compiled in {time.monotonic() - began:.0f} s ({_shown(target)}).")
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """Lets one process build at a time, and removes what killed builds left behind."""
    compiled.builds().mkdir(parents=True, exist_ok=True)
    with (compiled.builds() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in compiled.builds().glob(f"{BUILDING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield


def what_is_missing() -> str | None:
    """The reason why nothing can be built here. None if nothing is missing."""
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return "mypyc is not installed (it comes with mypy)"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "the headers of this Python are not installed"
    return None


def is_built(target: Path) -> bool:
    """Whether the build is complete, loadable, and made by the installed mypyc with these flags."""
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
    """The builds of other versions of the sources, except for the latest NUM_KEPT - 1."""
    others = [other for other in compiled.builds().iterdir() if (other / MADE_WITH).is_file() and other != newest]
    return sorted(others, key=lambda other: other.stat().st_mtime)[: -NUM_KEPT + 1]


def _shown(target: Path) -> Path:
    return target.relative_to(compiled.ROOT)


def _made_with() -> str:
    from mypy.version import __version__

    return f"mypyc {__version__}, -O{OPTIMIZATION} {' '.join(FLAGS)}"


def build(building: Path) -> None:
    """Build into the subfolder `lib` of `building`."""
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
