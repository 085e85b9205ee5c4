"""The source files of the packages, and what each of them imports."""

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "cluster", "decode", "kvtransfer", "prefill", "router")
SOURCES = sorted(file.relative_to(ROOT).as_posix() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
HELPERS = sorted(
    file.relative_to(ROOT).as_posix() for package in ("tests", "bench") for file in (ROOT / package).rglob("*.py")
)


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(), file)


@cache
def imports(file: str) -> frozenset[str]:
    """Names of the modules that a file imports, anywhere in it."""
    return frozenset(_imports(file))


def _imports(file: str) -> Iterator[str]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(file, node)
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else base for name in names)


def _imported_from(file: str, node: ast.ImportFrom) -> str:
    """The absolute name of what the names are imported from."""
    above = list(Path(file).parts[: -node.level]) if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


@cache
def is_module(name: str) -> bool:
    """Whether a name is a module or a package of ours."""
    place = ROOT / name.replace(".", "/")
    return place.with_name(f"{place.name}.py").is_file() or (place / "__init__.py").is_file()


def file_of(module: str) -> str:
    """The file of a module or of a package of ours."""
    file = f"{module.replace('.', '/')}.py"
    return file if (ROOT / file).is_file() else f"{module.replace('.', '/')}/__init__.py"


def roots(file: str) -> set[str]:
    return {name.partition(".")[0] for name in imports(file)}


def matching(pattern: str) -> list[str]:
    return [file for file in SOURCES if fnmatch(file, pattern)]
