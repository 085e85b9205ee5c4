"""Options of commands that change what is in force for one tenant: terms that are allowed, and thresholds."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from api.safety.policy import Threshold
from api.safety.tenant_overrides import OverridesFile
from api.safety.verdict import Category
from cluster.cli.conf_option import config_of
from cluster.repository import REPO_ROOT


def add_changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow",
        metavar="TERM",
        action="append",
        default=[],
        help="a term that no list finds for this tenant any more, in plain spelling",
    )
    parser.add_argument(
        "--threshold",
        metavar="CATEGORY=THRESHOLD",
        type=_threshold,
        action="append",
        default=[],
        help="a threshold for this tenant from now on, such as violence=block_only_high",
    )


def has_changes(arguments: argparse.Namespace) -> bool:
    return bool(arguments.allow or arguments.threshold)


@contextmanager
def changes_of(arguments: argparse.Namespace) -> Iterator[None]:
    """Put the changes in force if the body succeeds. Raises OSError, and ValueError for a change that is not valid or
    has no effect.
    """
    file = overrides_file(arguments)
    if file is None:
        raise ValueError(f"{arguments.conf} has no safety.folder")
    is_done = False
    try:
        with file.change(arguments.allow, dict(arguments.threshold)):
            yield
            is_done = True
    except OSError as error:
        if is_done:
            print("baton: the change is not in force: `baton safety override` repeats it", file=sys.stderr)
        raise error
    print(f"{file.path} is written: ingresses that read this folder follow within a second")


def overrides_file(arguments: argparse.Namespace) -> OverridesFile | None:
    """Of the tenant; None if nothing is screened. Raises ValueError."""
    folder = config_of(arguments).safety.folder
    return None if folder is None else OverridesFile(REPO_ROOT / folder, arguments.tenant)


def _threshold(text: str) -> tuple[Category, Threshold]:
    """Raises argparse.ArgumentTypeError."""
    category, _, threshold = text.partition("=")
    try:
        return Category(category), Threshold(threshold)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
