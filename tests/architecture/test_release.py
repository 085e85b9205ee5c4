"""What a session generates leaves through api/frontend/release.py alone, where the safety policy holds it back."""

import ast
from pathlib import Path

from cluster.repository import REPO_ROOT

RELEASE = "api/frontend/release.py"
STARTERS = frozenset({"Session", "SessionFactory", "start_session", "_start_session"})
"""Names by which a module gets a session."""
MAKER = "api/deployment.py"
"""It makes sessions, and reads none."""


def attributes(tree: ast.Module) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def names(tree: ast.Module) -> set[str]:
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import) for alias in node.names
    }
    return imported | attributes(tree) | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def trees(folder: str) -> dict[str, ast.Module]:
    files = (REPO_ROOT / folder).rglob("*.py")
    return {str(file.relative_to(REPO_ROOT)): ast.parse(file.read_text()) for file in files}


def test_sessions_are_known_in_the_frontend_alone() -> None:
    outside = {file for file, tree in trees("api").items() if names(tree) & STARTERS}
    assert {file for file in outside if Path(file).parent != Path(RELEASE).parent} == {MAKER}


def test_release_alone_reads_them() -> None:
    assert {file for file, tree in trees("api/frontend").items() if "run" in attributes(tree)} == {RELEASE}
    assert "run" not in attributes(trees("api")[MAKER])
