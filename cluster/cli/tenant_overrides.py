"""Options of commands that change what is in force for one tenant: terms that are allowed, and thresholds."""

import argparse
from typing import NamedTuple

import yaml

from api.safety.policy import Threshold
from api.safety.tenant_overrides import OverridesFile, TenantOverrides
from api.safety.verdict import Category
from cluster.config.application import AppConfig, parse
from cluster.repository import REPO_ROOT


class ChangedOverrides(NamedTuple):
    """The overrides of a tenant as they are to be, and their file."""

    file: OverridesFile
    overrides: TenantOverrides

    def write(self) -> None:
        self.file.write(self.overrides)
        print(f"{self.file.path} is written: ingresses that read this folder follow within a second")


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


def changed_overrides(arguments: argparse.Namespace) -> ChangedOverrides:
    """Raises OSError, and ValueError for a change that is not valid or has no effect."""
    folder = config_of(arguments).safety.folder
    if folder is None:
        raise ValueError(f"{arguments.conf} has no safety.folder")
    file = OverridesFile(REPO_ROOT / folder, arguments.tenant)
    return ChangedOverrides(file, file.changed(arguments.allow, dict(arguments.threshold)))


def config_of(arguments: argparse.Namespace) -> AppConfig:
    """Raises OSError, and ValueError, LookupError or YAMLError for a config that is not valid."""
    return parse(yaml.safe_load(arguments.conf.read_text())["applications"][0]["args"])


def _threshold(text: str) -> tuple[Category, Threshold]:
    """Raises argparse.ArgumentTypeError."""
    category, _, threshold = text.partition("=")
    try:
        return Category(category), Threshold(threshold)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
