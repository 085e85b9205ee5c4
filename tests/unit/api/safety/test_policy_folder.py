"""Policies come from a folder, and change with it; a change that is not valid changes nothing."""

import logging
import os
from pathlib import Path

import msgspec
import pytest

from api.safety.judge import judged_text
from api.safety.policy import Policy, Threshold
from api.safety.policy_folder import PolicyFolder
from api.safety.scans.rules import TextRole, WordList
from api.safety.verdict import Category
from cluster.repository import REPO_ROOT
from tests.component.safety_folder import safety_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    safety_in(tmp_path, 'default_threshold = "block_only_high"')
    return tmp_path


def write(file: Path, text: str) -> None:
    """At another time than the last one."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    os.utime(file, ns=(before + 1, before + 1))


def threshold(folder: PolicyFolder, tenant: str = "t") -> Threshold:
    return folder.data.of_tenant(tenant).policy.threshold(Category.HATE)


def test_changes_are_in_force_after_the_next_look(folder: Path) -> None:
    policies = PolicyFolder(folder)
    version = policies.data.of_tenant("t").version
    assert not policies.refresh()
    write(folder / "policies" / "standard.toml", 'default_threshold = "block_low_and_above"')
    assert threshold(policies) is Threshold.ONLY_HIGH
    assert policies.refresh()
    assert threshold(policies) is Threshold.LOW
    assert policies.data.of_tenant("t").version != version


def test_tenants_have_their_policies(folder: Path) -> None:
    write(folder / "policies" / "tight.toml", 'default_threshold = "block_low_and_above"')
    write(folder / "tenants.toml", 'default = "standard"\n[tenants]\nanne = "tight"')
    policies = PolicyFolder(folder)
    assert (threshold(policies, "anne"), threshold(policies, "bob")) == (Threshold.LOW, Threshold.ONLY_HIGH)


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("policies/standard.toml", "default_threshold = ", "Invalid"),
        ("policies/standard.toml", 'default_treshold = "off"', "default_treshold"),
        ("policies/standard.toml", 'shadow = "missing"', "missing.toml"),
        ("policies/standard.toml", 'disclaimers = ["cooking"]', "topics has no cooking.toml"),
        ("topics/medical.toml", "entries = []", "disclaimer"),
        ("policies/standard.toml", "[stages.lists]\nfails_closed = false", "only the guard has fails_closed"),
        ("policies/standard.toml", '[stages.personal_data]\nruns = "in_doubt"', "runs always or never"),
        ("policies/standard.toml", '[personal_data_in]\ncredit_card = "mask"', "credit_card"),
        ("tenants.toml", 'default = "missing"', "missing.toml"),
        ("lists/violence.toml", 'category = "violense"\nentries = []', "violense"),
        ("lists/violence.toml", 'category = "violence"\n[[entries]]\nscore = 0.5\npatterns = ["(a"]', "pattern"),
    ],
)
def test_what_is_not_valid_is_told_and_changes_nothing(
    folder: Path, file: str, text: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    policies = PolicyFolder(folder)
    write(folder / file, text)
    with caplog.at_level(logging.ERROR):
        assert not policies.refresh()
    assert "is not in force" in caplog.text and why in caplog.text
    assert threshold(policies) is Threshold.ONLY_HIGH
    with pytest.raises(ValueError, match=why):
        PolicyFolder(folder)


def test_folder_of_the_repository_is_valid() -> None:
    data = PolicyFolder(REPO_ROOT / "conf" / "safety").data
    assert {"off", "standard", "strict"} <= data.policies.keys()
    for name in data.policies:
        assert data.policies[name].policy.threshold(Category.SEXUAL_MINORS) is Threshold.LOW


LEET = str.maketrans("oieast", "013457")


def test_terms_of_the_repository_are_found_plain_spaced_out_and_in_leetspeak() -> None:
    folder = REPO_ROOT / "conf" / "safety"
    rules = PolicyFolder(folder).data.rules
    policy = Policy(default_threshold=Threshold.LOW)
    for file in (folder / "lists").glob("*.toml"):
        for entry in msgspec.toml.decode(file.read_bytes(), type=WordList).entries:
            for term in (*entry.terms, *entry.stems):
                for text in (term, " ".join(term.replace(" ", "")), term.translate(LEET)):
                    judged = judged_text(policy, None, TextRole.TOOL, rules, None)
                    judged.text.feed(f"Well, {text}, so to say")
                    judged.text.finish()
                    assert judged.judge.blocked, text
