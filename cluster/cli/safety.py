"""`baton safety`: checks the folder of policies, tells what is found in a text and why, and changes what is in force
for one tenant; without a running service.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from api.safety.classifiers.classifier_loading import load_classifier
from api.safety.judge import judged_text
from api.safety.policy_folder import PolicyFolder
from api.safety.scans.rules import TextRole
from cluster.cli.conf_option import add_conf, config_of
from cluster.cli.tenant_overrides import add_changes, changes_of, has_changes
from cluster.repository import REPO_ROOT


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of_safety = parser.add_subparsers(required=True, metavar="command")
    check = of_safety.add_parser(
        "check",
        help="check the folder of policies; with a text, tell what is found in it",
        description="Reads safety.folder as an ingress does, and ends with 1 if it is not valid. With a text, prints "
        "what all stages but the guard find in it, and what the policy of the tenant does about that, as JSON.",
    )
    check.add_argument("text", nargs="?", type=Path, metavar="FILE", help="file with the text; - for standard input")
    check.add_argument("--tenant", default="", help="name of the tenant (default: one that is not named)")
    check.add_argument(
        "--role", type=TextRole, choices=[*TextRole], default=TextRole.ANSWER, help="whose text it is (default: answer)"
    )
    add_conf(check, _check)
    override = of_safety.add_parser("override", help="allow terms to one tenant, or set thresholds for it")
    override.add_argument("--tenant", required=True, help="name of the tenant, as `baton tenant` prints it")
    add_changes(override)
    add_conf(override, _override)


def _check(arguments: argparse.Namespace) -> int:
    try:
        config = config_of(arguments).safety
        if config.folder is None:
            raise ValueError(f"{arguments.conf} has no safety.folder")
        folder = REPO_ROOT / config.folder
        data = PolicyFolder(folder).data
        classifier = None if config.classifier is None else load_classifier(config.classifier, folder / "classifier")
        if arguments.text is None:
            print(f"{folder} is valid: {len(data.policies)} policies, {len(data.overridden)} tenants with overrides")
            return 0
        text = sys.stdin.read() if str(arguments.text) == "-" else arguments.text.read_text()
    except (OSError, ValueError, LookupError, yaml.YAMLError) as error:
        return _failed(error)
    in_force = data.of_tenant(arguments.tenant)
    judged = judged_text(in_force.policy, in_force.shadow, arguments.role, data.rules, classifier)
    judged.text.feed(text)
    judged.text.finish()
    judge = judged.judge
    found: dict[str, Any] = {
        "policy_version": in_force.version,
        "blocked": sorted(judge.blocked),
        "cut_at": None if judged.text.cut is None else judged.text.cut.begin,
        "is_in_doubt": bool(judge.doubts),
        "masked": dict(judge.masked),
        "scores": {stage: dict(scores) for stage, scores in judge.scores.items()},
        "terms": judge.terms,
        "disclaimers": [topic for topic in judge.topics if topic in in_force.policy.disclaimers],
        "topics": judge.hints,
    }
    print(json.dumps(found, ensure_ascii=False, indent=2))
    return 0


def _override(arguments: argparse.Namespace) -> int:
    if not has_changes(arguments):
        print("baton: nothing to change: give --allow or --threshold", file=sys.stderr)
        return 2
    try:
        with changes_of(arguments):
            pass
    except (OSError, ValueError, LookupError, yaml.YAMLError) as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    print(f"baton: {error}", file=sys.stderr)
    return 1
