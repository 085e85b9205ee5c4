"""Which modules are pure, and what a pure module may import and call. A pure module takes its clock, its chance and its
input as arguments.

Two things make a module pure: it is in one of the folders PURE_FOLDERS, or the first paragraph of its docstring ends
with the sentence `Pure.`
"""

import ast
import re
import sys
from fnmatch import fnmatch

import pytest

from tests.architecture.sources import PACKAGES, ROOT, SOURCES, file_of, imports, matching, tree

PURE_FOLDERS = (
    "api/wire",
    "cluster/config",
    "cluster/messages",
    "cluster/observability/alerts",
    "cluster/observability/panels",
    "cluster/simulation/engine",
    "cluster/simulation/results",
    "router/admission",
    "router/cells",
    "router/links",
    "router/trust",
    "router/load",
    "router/placement",
    "router/prediction",
    "router/prefixes",
    "router/quarantine",
    "router/retention",
)
MARKED = re.compile(r"\bPure\.\Z")
CLAIMED = re.compile(r"\bPure\b")

STANDARD = frozenset(
    {"array", "base64", "bisect", "collections", "copy", "dataclasses", "enum", "hashlib", "heapq", "hmac", "html"}
    | {"ipaddress", "itertools", "json", "math", "re", "statistics", "types", "typing"}
    | {"unicodedata", "zlib"}
)
"""Modules of the standard library that compute, and do nothing else."""
NAMES = frozenset({"pathlib.PurePath", "sys.byteorder", "sys.getsizeof"})
"""Names of modules of the standard library whose other names reach the outside."""
LIBRARIES = frozenset({"msgspec"})
EXCEPTIONS = {
    "api/metering/prices.py": {"datetime"},
    "api/safety/scans/automata.py": {"interegular"},
    "api/safety/scans/personal_data.py": {"phonenumbers", "stdnum"},
    "api/wire/items.py": {"openai", "pydantic"},
    "api/wire/validation.py": {"pydantic", "pydantic_core"},
    "cluster/observability/render/window.py": {"datetime"},
    "api/safety/scans/__init__.py": {"cluster.compiled"},
    "router/*/__init__.py": {"cluster.compiled"},
}
"""What some pure modules import besides. Prices and time axes have dates. interegular makes automata of regular
expressions; phonenumbers and stdnum check numbers. OpenAI's client defines the items of a conversation as pydantic
models, which the next two parse with. The packages find the compiled twins of their modules, before the modules are
loaded.
"""

BUILTINS = frozenset({"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"})
CLOCKS = frozenset({"environ", "time"})
"""Attributes, such as the `time` of an event loop."""

ON_GIVEN_CLOCK = (
    "router/session/*",
    "cluster/step_stream/*",
    "cluster/simulation/*",
    "cluster/clients/*",
    "decode/link_probe.py",
    "decode/proven_links.py",
)
"""asyncio and logging, on a clock that is the event loop's: the same code runs in the simulator."""
NOT_IN_SIMULATOR = frozenset({"multiprocessing", "os", "socket", "subprocess", "threading", "time"})


def docstring(file: str) -> str:
    return ast.get_docstring(tree(file)) or ""


def is_marked(file: str) -> bool:
    return MARKED.search(docstring(file).partition("\n\n")[0].rstrip()) is not None


PURE = [file for file in SOURCES if any(file.startswith(f"{folder}/") for folder in PURE_FOLDERS) or is_marked(file)]


def excepted(file: str) -> set[str]:
    return {name for pattern, names in EXCEPTIONS.items() if fnmatch(file, pattern) for name in names}


def names_imported(file: str) -> set[str]:
    """The names that a file imports of other packages than ours, with their modules."""
    names: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if root_of(name) not in PACKAGES}


def root_of(name: str) -> str:
    return name.partition(".")[0]


def test_pure_folders_exist() -> None:
    assert [folder for folder in PURE_FOLDERS if not (ROOT / folder).is_dir()] == []
    assert [pattern for pattern in ON_GIVEN_CLOCK if not matching(pattern)] == []


@pytest.mark.parametrize("file", SOURCES)
def test_module_that_calls_itself_pure_does_so_where_it_is_checked(file: str) -> None:
    """The word stands nowhere but in the sentence that ends the first paragraph."""
    assert len(CLAIMED.findall(docstring(file))) == is_marked(file)


@pytest.mark.parametrize("file", PURE)
def test_pure_module_imports_nothing_that_reaches_the_outside(file: str) -> None:
    allowed = STANDARD | LIBRARIES | excepted(file)
    assert [name for name in names_imported(file) if root_of(name) not in allowed and name not in NAMES] == []


@pytest.mark.parametrize("file", PURE)
def test_pure_module_imports_pure_modules_of_ours_only(file: str) -> None:
    ours = {name for name in imports(file) if root_of(name) in PACKAGES} - excepted(file)
    assert [name for name in ours if file_of(name) not in PURE] == []


@pytest.mark.parametrize("file", PURE)
def test_pure_module_reads_no_clock_and_opens_nothing(file: str) -> None:
    nodes = list(ast.walk(tree(file)))
    assert [node.id for node in nodes if isinstance(node, ast.Name) and node.id in BUILTINS] == []
    assert [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute) and node.attr in CLOCKS] == []


@pytest.mark.parametrize("file", [file for pattern in ON_GIVEN_CLOCK for file in matching(pattern)])
def test_what_the_simulator_runs_has_the_clock_of_its_event_loop(file: str) -> None:
    assert third_parties(file) <= LIBRARIES
    assert {root_of(name) for name in names_imported(file)} & NOT_IN_SIMULATOR == set()


def third_parties(file: str) -> set[str]:
    return {root_of(name) for name in names_imported(file)} - sys.stdlib_module_names
