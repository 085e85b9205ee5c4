"""What options of account commands hold."""

import argparse
import math
import time
from collections.abc import Callable

import pytest
from msgspec import UNSET

from api.identity.rights import Right
from cluster.cli.accounts.values import duration, limit, model_limit, moment, rights


def test_limits_have_a_name_and_a_number_or_a_word() -> None:
    assert limit("requests_per_minute=60") == ("requests_per_minute", 60)
    assert limit("cost_per_day=none") == ("cost_per_day", None)
    assert limit("cost_per_day=default") == ("cost_per_day", UNSET)
    assert limit("cost_per_day=0") == ("cost_per_day", 0)
    assert model_limit("org/m:v1:tokens_per_day=5") == ("org/m:v1", ("tokens_per_day", 5))


def test_times_are_durations_moments_or_never() -> None:
    assert [duration(text) for text in ("10s", "30m", "24h", "90d", "1.5h")] == [10, 1800, 86400, 7776000, 5400]
    assert abs(moment("1h") - time.time() - 3600) < 5
    assert moment("2030-01-31T12:00:00Z") == moment("2030-01-31T14:00:00+02:00") == 1896091200
    assert moment("never") == math.inf


def test_rights_are_read() -> None:
    assert rights("inference,usage:read") == {Right.INFERENCE, Right.USAGE_READ}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (limit, "requests_per_minute"),
        (limit, "requests_per_minute=-1"),
        (limit, "requests_per_minute=0"),
        (limit, "requests_per_minute=1.5"),
        (limit, "requests_per_minute=²"),
        (limit, "requests_per_minute=" + "9" * 5000),
        (limit, "requests_per_minute=unset"),
        (limit, "requests=1"),
        (model_limit, "tokens_per_day=5"),
        (model_limit, ":tokens_per_day=5"),
        (duration, "90"),
        (duration, "-1h"),
        (duration, "1y"),
        (duration, "1e9d"),
        (moment, "tomorrow"),
        (moment, "2030-01-31T12:00:00"),
        (rights, "everything"),
        (rights, ""),
    ],
)
def test_what_cannot_be_is_refused_by_the_parser(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        read(text)
