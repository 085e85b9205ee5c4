"""What a session generates leaves through api/frontend/release.py alone, where the safety policy holds it back."""

import ast
from pathlib import Path

from cluster.repository import REPO_ROOT

RELEASE = Path("api/frontend/release.py")
SESSIONS = "router.session.session"


def files_that_read(tree_of: dict[Path, ast.Module]) -> set[Path]:
    """Files with sessions that call a `run` without arguments, as the one of a session is."""
    return {
        file
        for file, tree in tree_of.items()
        if any(isinstance(node, ast.ImportFrom) and node.module == SESSIONS for node in ast.walk(tree))
        and any(
            isinstance(node, ast.Attribute) and node.attr == "run" and isinstance(node.ctx, ast.Load)
            for node in ast.walk(tree)
        )
    }


def test_release_alone_reads_sessions() -> None:
    files = (file for file in (REPO_ROOT / "api").rglob("*.py"))
    trees = {file.relative_to(REPO_ROOT): ast.parse(file.read_text()) for file in files}
    assert files_that_read(trees) == {RELEASE}


def test_reader_is_found() -> None:
    source = f"from {SESSIONS} import Session\nasync def f(x: Session) -> None:\n    y = x.run\n"
    assert files_that_read({RELEASE: ast.parse(source)}) == {RELEASE}
