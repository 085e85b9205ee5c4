"""What a decision on an appeal has changed is in force for its tenant, and for nobody else."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.safety.policy import Policy, Threshold
from api.safety.policy_folder import PolicyFolder
from api.safety.tenant_overrides import OverridesFile, TenantOverrides
from api.safety.verdict import Category
from tests.component.safety_folder import safety_in


def test_changes_add_up_and_are_in_force_for_the_tenant_alone(tmp_path: Path) -> None:
    safety_in(tmp_path, 'allowed = ["pipe bomb"]\n[thresholds]\nhate = "block_low_and_above"')
    policies = PolicyFolder(tmp_path)
    before = policies.data.of_tenant("anne")
    file = OverridesFile(tmp_path, "anne")
    file.write(file.changed(["glue soup"], {Category.HATE: Threshold.ONLY_HIGH}))
    file.write(file.changed(["glue soup", 'the "big" one'], {Category.VIOLENCE: Threshold.OFF}))
    assert policies.refresh()
    anne, bob = policies.data.of_tenant("anne"), policies.data.of_tenant("bob")
    assert anne.policy.allowed == ["pipe bomb", "glue soup", 'the "big" one']
    assert anne.policy.threshold(Category.HATE) is Threshold.ONLY_HIGH
    assert anne.policy.threshold(Category.VIOLENCE) is Threshold.OFF
    assert (bob, bob.version != anne.version) == (before, True)


def test_what_may_never_be_off_stays_on() -> None:
    loosened = TenantOverrides(thresholds={Category.SEXUAL_MINORS: Threshold.OFF}).applied(Policy())
    assert loosened.threshold(Category.SEXUAL_MINORS) is Threshold.LOW


@given(st.lists(st.text(min_size=1).filter(str.isprintable)))
def test_terms_are_read_as_they_were_written(terms: list[str]) -> None:
    overrides = TenantOverrides(allowed=terms, thresholds={Category.HATE: Threshold.OFF})
    assert msgspec.toml.decode(overrides.to_toml().encode(), type=TenantOverrides) == overrides


@pytest.mark.parametrize("term", ["", " ", "\u200b", "two\nlines"])
def test_terms_that_find_nothing_are_refused(tmp_path: Path, term: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        OverridesFile(tmp_path, "anne").changed([term], {})


@pytest.mark.parametrize("tenant", ["", "../standard", "a/b", "x" * 65])
def test_names_that_are_no_tenants_are_refused(tmp_path: Path, tenant: str) -> None:
    with pytest.raises(ValueError, match="no name of a tenant"):
        OverridesFile(tmp_path, tenant)


@pytest.mark.parametrize("category", [Category.PERSONAL_DATA, Category.SEXUAL_MINORS])
def test_thresholds_without_effect_are_refused(tmp_path: Path, category: Category) -> None:
    with pytest.raises(ValueError, match="threshold"):
        OverridesFile(tmp_path, "anne").changed([], {category: Threshold.OFF})
