"""That classes, and the helpers of tests and benchmarks, have one name each, and that ignored types have reasons."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.architecture.sources import HELPERS, PACKAGES, ROOT, SOURCES, tree

OWN_ROOTS = frozenset({*PACKAGES, "tests", "bench"})
INSTALLED = frozenset(packages_distributions())
"""Top-level names of installed distributions. Tests in the mirror of `api/state/redis/` import the library redis."""


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for file in SOURCES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, number in names.items() if number > 1] == []


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
    if root in OWN_ROOTS or root in sys.stdlib_module_names or root in INSTALLED:
        return False
    folders = [parent for parent in (ROOT / file).parents if parent.is_relative_to(ROOT) and parent != ROOT]
    return any(has(folder, root) for folder in folders)


@cache
def has(folder: Path, root: str) -> bool:
    """Whether a folder has a module or a folder of this name."""
    return (folder / f"{root}.py").is_file() or (folder / root).is_dir()
