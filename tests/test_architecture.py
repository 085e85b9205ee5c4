"""The rules of structure that no type checker sees: which folders are pure, where each dependency is imported, that
names are unique, and how long files, functions and folders are. Who may import whom is a contract in pyproject.toml.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from cluster.compiled import INTERPRETED, MODULES

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("api", "cluster", "decode", "kvtransfer", "prefill", "router")
SOURCES = sorted(file.relative_to(ROOT).as_posix() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))

PURE = (
    "cluster/messages/*",
    "cluster/config/*",
    "cluster/errors.py",
    "cluster/slo.py",
    "cluster/clients/scheduler_outbox.py",
    "cluster/engine/kv_mirror.py",
    "cluster/engine/shape.py",
    "cluster/engine_core/grammar_budget.py",
    "cluster/engine_core/step_samples.py",
    "cluster/engine_core/tag_schemas.py",
    "cluster/network/handshake.py",
    "cluster/simulation/engine/*",
    "cluster/simulation/results/*",
    "router/state.py",
    "router/ingresses.py",
    "router/admission/*",
    "router/placement/*",
    "router/load/*",
    "router/prediction/*",
    "router/prefixes/*",
    "router/quarantine/*",
    "kvtransfer/handoff.py",
    "kvtransfer/lease_terms.py",
    "kvtransfer/notifications.py",
    "kvtransfer/telemetry.py",
    "kvtransfer/verify.py",
    "kvtransfer/transport/*",
    "prefill/lease_table.py",
    "decode/link_speed.py",
    "api/identity/*",
    "api/wire/*",
)
"""Folders, and some files, that take their clock, chance and input as arguments, and know no framework."""

PARSED_BY_PYDANTIC = ("api/wire/items.py", "api/wire/validation.py")
"""Pure modules that parse OpenAI's shapes with pydantic, as OpenAI's client and vLLM define these shapes."""

ON_GIVEN_CLOCK = (
    "router/session/*",
    "cluster/step_stream/*",
    "cluster/simulation/*",
    "cluster/clients/*",
    "decode/link_probe.py",
    "decode/proven_links.py",
)
"""asyncio and logging, on a clock that is the event loop's: the same code runs in the simulator."""

NO_FRAMEWORK = frozenset(
    {"fastapi", "nixl", "prometheus_client", "psycopg", "pydantic", "ray", "redis", "starlette", "torch", "vllm"}
)
OUTSIDE_WORLD = frozenset({"time", "random", "os", "datetime", "threading", "subprocess", "socket"})
"""Clock, chance, environment and I/O: arguments of pure modules, not imports."""

ALLOWED = {
    "vllm": (
        "cluster/engine/*",
        "cluster/engine_core/grammar_*.py",
        "kvtransfer/connector.py",
        "kvtransfer/side_channel.py",
        "kvtransfer/tiers/*",
        "api/frontend/*",
        "api/structured/*",
    ),
    "ray": ("*/deployment.py", "cluster/app.py", "cluster/serve_context.py"),
    "nixl": ("kvtransfer/connector.py",),
    "torch": ("kvtransfer/tiers/*",),
    "fastapi": ("api/http_app.py", "api/routes/*", "api/server/*", "api/edge/error_response.py"),
    "starlette": (
        "api/http_app.py",
        "api/server/*",
        "api/edge/*",
        "api/responses/idempotency.py",
        "api/frontend/frontend.py",
    ),
    "uvicorn": ("api/server/*",),
    "pydantic": ("api/frontend/*", "api/wire/items.py", "api/wire/validation.py"),
    "openai": ("api/wire/items.py",),
    "psycopg": ("api/state/postgres/*", "cluster/services/postgres.py"),
    "redis": ("api/state/redis/*",),
    "cryptography": ("api/state/encryption/*", "kvtransfer/side_channel.py"),
}
"""Where each dependency is imported, and nowhere else."""

MAX_MODULES = 15
"""In one folder: what a reader takes in at once."""

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_METHODS = 400, 60, 20

HELPERS = sorted(
    file.relative_to(ROOT).as_posix() for package in ("tests", "bench") for file in (ROOT / package).rglob("*.py")
)
OWN_ROOTS = frozenset({*PACKAGES, "tests", "bench"})


def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(), file)


def imports(file: str) -> Iterator[str]:
    """Names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (
                name if (ROOT / f"{name.replace('.', '/')}.py").is_file() else str(node.module) for name in names
            )


def matching(pattern: str) -> list[str]:
    return [file for file in SOURCES if fnmatch(file, pattern)]


def roots(file: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)}


@pytest.mark.parametrize("framework", ALLOWED)
def test_framework_is_imported_only_where_it_is_adapted(framework: str) -> None:
    allowed = ALLOWED[framework]
    users = [file for file in SOURCES if framework in roots(file)]
    assert [file for file in users if not any(fnmatch(file, pattern) for pattern in allowed)] == []


def test_pure_folders_exist() -> None:
    assert [pattern for pattern in PURE + ON_GIVEN_CLOCK if not matching(pattern)] == []


@pytest.mark.parametrize("file", [file for pattern in PURE for file in matching(pattern)])
def test_pure_module_has_no_framework_clock_chance_or_environment(file: Any) -> None:
    permitted = {"pydantic"} if file in PARSED_BY_PYDANTIC else set()
    assert roots(file) & (NO_FRAMEWORK | OUTSIDE_WORLD | {"asyncio", "logging"}) - permitted == set()
    assert clocks_of(file) == []


@pytest.mark.parametrize("file", [file for pattern in ON_GIVEN_CLOCK for file in matching(pattern)])
def test_what_the_simulator_runs_has_the_clock_of_its_event_loop(file: Any) -> None:
    assert roots(file) & (NO_FRAMEWORK | {"time", "os", "threading", "subprocess", "socket"}) == set()


def clocks_of(file: str) -> list[ast.Attribute]:
    return [n for n in ast.walk(tree(file)) if isinstance(n, ast.Attribute) and n.attr in ("time", "environ")]


def test_unit_tests_load_no_engine() -> None:
    """So that they stay fast."""
    files = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests/unit").rglob("*.py")]
    ours = {name for file in files for name in imports(file) if name.partition(".")[0] in PACKAGES}
    program = (
        f"import sys, importlib\n"
        f"for module in {sorted(ours)!r}: importlib.import_module(module)\n"
        f"print(*sorted({{'ray', 'vllm', 'torch', 'nixl'}} & sys.modules.keys()))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for file in SOURCES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, number in names.items() if number > 1] == []


@pytest.mark.parametrize("folder", sorted({str(Path(file).parent) for file in SOURCES}))
def test_folder_is_small_enough_to_be_taken_in_at_once(folder: str) -> None:
    modules = [file for file in SOURCES if str(Path(file).parent) == folder and not file.endswith("__init__.py")]
    assert len(modules) <= MAX_MODULES


def test_what_is_compiled_belongs_to_all_sources_of_ours_that_it_reads() -> None:
    ours = {name for module in MODULES for name in imports(f"{module.replace('.', '/')}.py")}
    assert {name for name in ours if name.partition(".")[0] in PACKAGES} <= {*MODULES, *INTERPRETED}


@pytest.mark.parametrize("file", SOURCES)
def test_file_is_short_enough_to_be_read_at_once(file: str) -> None:
    assert (ROOT / file).read_text().count("\n") <= MAX_FILE_LINES


@pytest.mark.parametrize("file", SOURCES)
def test_functions_are_short_enough_to_be_read_at_once(file: str) -> None:
    functions = [n for n in ast.walk(tree(file)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    too_long = [n.name for n in functions if (n.end_lineno or n.lineno) - n.lineno + 1 > MAX_FUNCTION_LINES]
    assert too_long == []


@pytest.mark.parametrize("file", SOURCES)
def test_class_has_few_methods(file: str) -> None:
    too_many = {}
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ClassDef):
            number = sum(isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body)
            if number > MAX_METHODS:
                too_many[node.name] = number
    assert too_many == {}


def test_helpers_of_tests_and_benchmarks_have_one_name_each() -> None:
    """A module with two names is loaded twice, and mypy refuses it."""
    assert [file for file in HELPERS if not (ROOT / file).with_name("__init__.py").is_file()] == []
    assert [f"{file}: {line}" for file in HELPERS for line in imports_by_another_name(file)] == []


def test_wrong_types_are_passed_on_purpose_alone() -> None:
    """Each `type: ignore` of a test names its error and, in the same line, the reason."""
    without = re.compile(r"# type: ignore(?!\[[a-z, -]+\]  # \w)")
    lines = [(file, line) for file in HELPERS for line in (ROOT / file).read_text().splitlines()]
    assert [
        f"{file}: {line.strip()}" for file, line in lines if without.search(line) and "re.compile" not in line
    ] == []


def imports_by_another_name(file: str) -> Iterator[str]:
    """Relative imports, imports of a neighbour by its bare name, and what changes where modules are looked up."""
    for node in ast.walk(tree(file)):
        match node:
            case ast.ImportFrom(level=level) if level:
                yield ast.unparse(node)
            case ast.ImportFrom(module=str(module)) if is_neighbour(file, module):
                yield ast.unparse(node)
            case ast.Import(names=names) if any(is_neighbour(file, alias.name) for alias in names):
                yield ast.unparse(node)
            case ast.Attribute(value=ast.Name(id="sys"), attr="path", ctx=ctx) if isinstance(ctx, ast.Store):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="path"))):
                yield ast.unparse(node)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="sys"), attr="path"), ctx=ast.Store()):
                yield ast.unparse(node)


def is_neighbour(file: str, module: str) -> bool:
    """Whether the first part of the module's name is a file or a folder above, below or beside the file."""
    root = module.partition(".")[0]
    if root in OWN_ROOTS or root in sys.stdlib_module_names:
        return False
    folders = [parent for parent in (ROOT / file).parents if parent.is_relative_to(ROOT) and parent != ROOT]
    return any((folder / f"{root}.py").is_file() or (folder / root).is_dir() for folder in folders)
