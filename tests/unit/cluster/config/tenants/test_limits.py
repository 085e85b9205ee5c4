"""The config section `limits:`."""

from typing import Any

import msgspec
import pytest

from cluster.config.application import parse
from cluster.config.tenants.limits import LimitDefaults, Limits, LimitsConfig


def test_defaults_set_no_limit() -> None:
    assert msgspec.convert({}, LimitsConfig) == LimitsConfig()
    assert LimitsConfig().defaults == LimitDefaults(key=Limits(), model=Limits())


def test_limits_of_each_scope_are_read() -> None:
    given = {"defaults": {"end_user": {"requests_per_minute": 6, "cost_per_day": None}}, "reservation_s": 30}
    config = msgspec.convert(given, LimitsConfig)
    assert config.defaults.end_user == Limits(requests_per_minute=6, cost_per_day=None)
    assert config.reservation_s == 30


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"defaults": {"key": {"rpm": 1}}}, "$.defaults.key"),
        ({"defaults": {"team": {}}}, "$.defaults"),
        ({"reservation_s": 1}, "$.reservation_s"),
        ({"budgets_without_redis_s": -1}, "$.budgets_without_redis_s"),
    ],
)
def test_error_names_the_place(given: dict[str, Any], path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(given, LimitsConfig)
    assert path in str(refused.value)


def test_limit_of_cost_is_refused_where_nothing_has_a_price() -> None:
    given = {"defaults": {"project": {"cost_per_day": None, "cost_per_month": 0}}}
    with pytest.raises(ValueError, match=r"limits: defaults.project: cost_per_month would never bind"):
        parse({"model": "m", "limits": given})
    parse({"model": "m", "limits": given, "metering": {"prices": "conf/prices.yaml"}})
    parse({"model": "m", "limits": {"defaults": {"project": {"cost_per_day": None, "tokens_per_day": 1}}}})
