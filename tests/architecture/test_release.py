"""What a session generates leaves through api/frontend/release.py alone, where the safety policy holds it back."""

import ast
from pathlib import Path

from tests.architecture.sources import SOURCES, tree

RELEASE = "api/frontend/release.py"
STARTERS = frozenset({"Session", "SessionFactory", "start_session", "_start_session"})
"""Names by which a module gets a session."""
MAKER = "api/replica.py"
"""It makes sessions, and reads none."""
PROBE = "api/quality/asking.py"
"""It reads the answers to probes, which leave to no client."""


def attributes(file: str) -> set[str]:
    return {node.attr for node in ast.walk(tree(file)) if isinstance(node, ast.Attribute)}


def names(file: str) -> set[str]:
    found = attributes(file)
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found


def files(folder: str) -> list[str]:
    return [file for file in SOURCES if file.startswith(f"{folder}/")]


def test_sessions_are_known_in_the_frontend_alone() -> None:
    outside = {file for file in files("api") if names(file) & STARTERS}
    assert {file for file in outside if Path(file).parent != Path(RELEASE).parent} == {MAKER, PROBE}


def test_release_alone_reads_them() -> None:
    assert {file for file in files("api/frontend") if "run" in attributes(file)} == {RELEASE}
    assert "run" not in attributes(MAKER)
