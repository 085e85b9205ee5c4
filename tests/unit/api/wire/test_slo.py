from typing import Any

import pytest

from api.wire.slo import TTFT_HEADER, seconds_of, slo_class_of, tier_of
from cluster.errors import InvalidRequest
from cluster.messages.ids import SloClass


@pytest.mark.parametrize(
    ("tier", "slo_class", "served_as"),
    [
        (None, SloClass.STANDARD, "default"),
        ("auto", SloClass.STANDARD, "default"),
        ("default", SloClass.STANDARD, "default"),
        ("scale", SloClass.STANDARD, "default"),
        ("priority", SloClass.INTERACTIVE, "priority"),
        ("fast", SloClass.INTERACTIVE, "priority"),
        ("flex", SloClass.BATCH, "flex"),
    ],
)
def test_service_tier_chooses_the_class(tier: str | None, slo_class: SloClass, served_as: str) -> None:
    assert slo_class_of({"service_tier": tier}) is slo_class
    assert tier_of(slo_class) == served_as


def test_body_that_is_no_object_is_for_others_to_refuse() -> None:
    assert slo_class_of([]) is SloClass.STANDARD


@pytest.mark.parametrize("tier", ["best", "", 1, ["auto"], {}], ids=repr)
def test_tier_that_does_not_exist_is_refused(tier: str | int | list[str] | dict[Any, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        slo_class_of({"service_tier": tier})
    assert (refused.value.param, refused.value.code) == ("service_tier", "invalid_value")


def test_objective_is_said_in_milliseconds() -> None:
    assert seconds_of({TTFT_HEADER: "250"}, TTFT_HEADER) == 0.25
    assert seconds_of({TTFT_HEADER: "0.5"}, TTFT_HEADER) == 0.0005
    assert seconds_of({}, TTFT_HEADER) is None


@pytest.mark.parametrize("text", ["", "fast", "0", "-1", "nan", "inf", "1s", "1,5", "1e-321"])
def test_objective_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        seconds_of({TTFT_HEADER: text}, TTFT_HEADER)
    assert (refused.value.param, refused.value.code) == (TTFT_HEADER, "invalid_value")
