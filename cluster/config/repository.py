"""Where this repository lies on a node, and what is looked up in it."""

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[2]


def resolve_model(model: str) -> str:
    """A model folder of the repository as an absolute path, wherever this node has the repository; else `model` as it
    is.
    """
    local = REPO_ROOT / model
    return str(local) if local.is_dir() else model
