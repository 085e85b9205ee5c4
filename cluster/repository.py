"""Where this repository is on a node, and the files that are looked up in it."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[1]


def resolve_model(model: str) -> str:
    """Return the absolute path of a model folder of the repository. Return `model` unchanged if the repository has no
    such folder.
    """
    local = REPO_ROOT / model
    return str(local) if local.is_dir() else model


def own_version() -> str:
    """The version of Baton. `unknown` where only the sources are there."""
    try:
        return version("baton")
    except PackageNotFoundError:
        return "unknown"
