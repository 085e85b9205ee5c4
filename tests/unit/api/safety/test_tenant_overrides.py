"""What a decision on an appeal has changed is in force for its tenant, and for nobody else."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.policy import Policy, Threshold
from api.safety.policy_folder import PolicyFolder
from api.safety.tenant_overrides import MOST_BYTES, OverridesFile, TenantOverrides, read_overrides
from api.safety.verdict import Category
from tests.component.safety_folder import safety_in


def changed(folder: Path, allowed: Sequence[str] = (), tenant: str = "anne", **thresholds: Threshold) -> None:
    with OverridesFile(folder, tenant).change(allowed, {Category(name): value for name, value in thresholds.items()}):
        pass


def test_changes_add_up_and_are_in_force_for_the_tenant_alone(tmp_path: Path) -> None:
    safety_in(tmp_path, 'allowed = ["pipe bomb"]\n[thresholds]\nhate = "block_low_and_above"')
    policies = PolicyFolder(tmp_path)
    before = policies.data.of_tenant("anne")
    changed(tmp_path, ["glue soup"], hate=Threshold.ONLY_HIGH)
    changed(tmp_path, ["glue soup", 'the "big" one'], violence=Threshold.OFF)
    assert policies.refresh()
    anne, bob = policies.data.of_tenant("anne"), policies.data.of_tenant("bob")
    assert anne.policy.allowed == ["pipe bomb", "glue soup", 'the "big" one']
    assert anne.policy.threshold(Category.HATE) is Threshold.ONLY_HIGH
    assert anne.policy.threshold(Category.VIOLENCE) is Threshold.OFF
    assert (bob, bob.version != anne.version) == (before, True)


def test_no_change_at_the_same_time_is_lost(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as deciders:
        list(deciders.map(lambda number: changed(tmp_path, [f"term {number}"]), range(40)))
    assert sorted(read_overrides(tmp_path / "overrides/anne.toml").allowed) == sorted(f"term {n}" for n in range(40))


def test_nothing_changes_without_the_decision(tmp_path: Path) -> None:
    with pytest.raises(LookupError), OverridesFile(tmp_path, "anne").change(["glue soup"], {}):
        raise LookupError("there is no such appeal")
    assert not (tmp_path / "overrides/anne.toml").exists()


@pytest.mark.parametrize("text", ['allowed = "x"', '[thresholds]\nviolense = "off"', "=", "#" * (MOST_BYTES + 1)])
def test_file_that_is_not_valid_keeps_no_other_change_from_being_in_force(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    safety_in(tmp_path)
    changed(tmp_path, ["glue soup"])
    (tmp_path / "overrides/bob.toml").write_text(text)
    (tmp_path / "overrides/gone.toml").symlink_to(tmp_path / "nowhere")
    with caplog.at_level(logging.ERROR):
        data = PolicyFolder(tmp_path).data
    assert data.of_tenant("anne").policy.allowed == ["glue soup"]
    assert data.of_tenant("bob") == data.of_tenant("carl")
    assert "the overrides of tenant bob are not in force" in caplog.text


def test_what_may_never_be_off_stays_on() -> None:
    loosened = TenantOverrides(thresholds={Category.SEXUAL_MINORS: Threshold.OFF}).applied(Policy())
    assert loosened.threshold(Category.SEXUAL_MINORS) is Threshold.LOW


@given(st.lists(st.text(min_size=1).filter(str.isprintable)))
def test_terms_are_read_as_they_were_written(terms: list[str]) -> None:
    overrides = TenantOverrides(allowed=terms, thresholds={Category.HATE: Threshold.OFF})
    assert msgspec.toml.decode(overrides.to_toml().encode(), type=TenantOverrides) == overrides


@pytest.mark.parametrize("term", ["", " ", "\u200b", "two\nlines", "del\x7f"])
def test_terms_that_find_nothing_are_refused(tmp_path: Path, term: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        changed(tmp_path, [term])


@pytest.mark.parametrize("tenant", ["", "../standard", "a/b", "x" * 65])
def test_names_that_are_no_tenants_are_refused(tmp_path: Path, tenant: str) -> None:
    with pytest.raises(ValueError, match="no name of a tenant"):
        OverridesFile(tmp_path, tenant)


@pytest.mark.parametrize("category", [Category.PERSONAL_DATA, Category.SEXUAL_MINORS])
def test_thresholds_without_effect_are_refused(tmp_path: Path, category: Category) -> None:
    with pytest.raises(ValueError, match="threshold"):
        changed(tmp_path, **{category: Threshold.OFF})
