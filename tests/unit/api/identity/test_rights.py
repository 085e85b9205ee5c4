"""Rights, principals and settings."""

import msgspec
import pytest
from msgspec import UNSET

from api.identity.principal import ANYBODY, Principal
from api.identity.rights import ALL_RIGHTS, DEFAULT_RIGHTS, Right, rights_of_text
from api.identity.settings import (
    MAX_MODELS,
    NO_LIMITS,
    NO_SETTINGS,
    SettingsChange,
    TenantSettings,
    check_models,
    checked_settings,
    limits_of_stored,
    settings_of_stored,
    with_changes,
)
from cluster.config.tenants.limits import Limits
from cluster.errors import Forbidden, InvalidRequest


def a_principal(**values: object) -> Principal:
    return Principal(**{"tenant": "t", "project": "p", "key": "k", "rights": DEFAULT_RIGHTS, **values})  # type: ignore[arg-type]  # any fields


def test_rights_are_read_from_text() -> None:
    assert rights_of_text("inference, state:read") == {Right.INFERENCE, Right.STATE_READ}
    assert rights_of_text(",".join(Right)) == ALL_RIGHTS


def test_keys_have_the_same_rights_by_default_whatever_rights_there_are() -> None:
    """A right that is new would otherwise be in new keys, and not in those that exist."""
    assert sorted(DEFAULT_RIGHTS) == ["inference", "state:read", "state:write"]


@pytest.mark.parametrize("text", ["", " ", "inference,", "state", "Inference", "inference state:read", "*"])
def test_what_is_no_right_is_refused_with_the_rights_there_are(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rights_of_text(text)
    assert all(right in str(caught.value) for right in Right) and caught.value.param == "rights"


def test_review_and_usage_are_no_default_rights() -> None:
    assert {Right.SAFETY_REVIEW, Right.USAGE_READ} == ALL_RIGHTS - DEFAULT_RIGHTS


def test_right_that_is_missing_is_named() -> None:
    a_principal().require(Right.INFERENCE)
    with pytest.raises(Forbidden, match="usage:read") as caught:
        a_principal().require(Right.USAGE_READ)
    assert (caught.value.http_status, caught.value.code) == (403, "insufficient_permissions")


def test_models_of_a_key_are_the_only_ones() -> None:
    a_principal().require_model("any")
    own = a_principal(models=frozenset({"a", "b"}))
    own.require_model("a")
    with pytest.raises(Forbidden, match=r"it may use a, b$") as caught:
        own.require_model("c")
    assert (caught.value.http_status, caught.value.code, caught.value.param) == (403, "model_not_allowed", "model")


def test_error_names_few_of_many_models() -> None:
    own = a_principal(models=frozenset(f"m{number:02}" for number in range(50)))
    with pytest.raises(Forbidden, match=r"m09, and others$"):
        own.require_model("c")


def test_anybody_may_do_everything() -> None:
    for right in Right:
        ANYBODY.require(right)
    ANYBODY.require_model("any")
    assert ANYBODY.tenant == ""


def test_limits_change_one_by_one() -> None:
    limits = with_changes(NO_LIMITS, {"tokens_per_day": 5, "cost_per_day": 6, "cost_per_month": 7})
    limits = with_changes(limits, {"cost_per_day": None, "cost_per_month": UNSET})
    assert limits == Limits(tokens_per_day=5, cost_per_day=None)
    assert with_changes(limits, {"tokens_per_day": UNSET, "cost_per_day": UNSET}) is NO_LIMITS


def test_limits_of_a_newer_version_are_ignored_in_what_is_stored_alone() -> None:
    stored = {"tokens_per_day": None, "watts": 5}
    assert limits_of_stored(stored) == Limits(tokens_per_day=None)
    settings = settings_of_stored(
        {"limits": stored, "end_user_limits": stored, "model_limits": {"m": stored}, "colour": "blue"}
    )
    own = Limits(tokens_per_day=None)
    assert settings == TenantSettings(limits=own, end_user_limits=own, model_limits={"m": own})
    with pytest.raises(msgspec.ValidationError, match="watts"):
        msgspec.convert(stored, Limits)


@pytest.mark.parametrize(
    "stored",
    [[], None, {"limits": []}, {"model_limits": [{}]}, {"model_limits": {"m": None}}, {"share_prefixes": "on"}],
)
def test_what_is_stored_and_no_object_of_settings_cannot_be_read(stored: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        settings_of_stored(stored)


@pytest.mark.parametrize(
    "changes", [{"tokens": 1}, {"requests_per_minute": 0}, {"tokens_per_day": -1}, {"tokens_per_day": 1 << 60}]
)
def test_limit_that_cannot_be_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        with_changes(NO_LIMITS, changes)


@pytest.mark.parametrize("weight", [0.0, -1.0, 1001.0, float("nan")])
def test_weight_out_of_range_is_refused(weight: float) -> None:
    with pytest.raises(InvalidRequest):
        checked_settings(TenantSettings(weight=weight))


def test_tenant_shares_public_prefixes_only_while_it_wants_to() -> None:
    assert not settings_of_stored({}).share_prefixes
    shares = SettingsChange(share_prefixes=True).applied_to(NO_SETTINGS)
    assert SettingsChange(weight=2.0).applied_to(shares).share_prefixes
    assert SettingsChange(share_prefixes=False).applied_to(shares) == NO_SETTINGS


def test_limits_of_too_many_models_are_refused() -> None:
    limits = {f"m{number}": NO_LIMITS for number in range(MAX_MODELS + 1)}
    with pytest.raises((InvalidRequest, ValueError)):
        TenantSettings(model_limits=limits)
    with pytest.raises(InvalidRequest):
        check_models(frozenset(limits))
    with pytest.raises(InvalidRequest):
        check_models(frozenset())


def test_settings_are_stored_without_what_is_not_set() -> None:
    settings = TenantSettings(model_limits={"m": Limits(tokens_per_day=1)})
    assert msgspec.to_builtins(settings) == {"model_limits": {"m": {"tokens_per_day": 1}}}
    assert settings_of_stored(msgspec.to_builtins(settings)) == settings
