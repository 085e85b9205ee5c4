from typing import Any

import pytest

from cluster.config.application import parse


@pytest.mark.parametrize(("given", "quarantines"), [("on", True), (True, True), ("off", False), (False, False)])
def test_quarantine_is_read_as_yaml_gives_it(given: Any, quarantines: bool) -> None:
    assert parse({"model": "m", "quality_probe": {"quarantine": given}}).quality_probe.quarantines is quarantines


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_s": 0},
        {"tokens": 0},
        {"tokens": 257},
        {"max_share": 0},
        {"max_share": 2},
        {"quarantine": "maybe"},
        {"x": 1},
    ],
)
def test_setting_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="invalid args"):
        parse({"model": "m", "quality_probe": wrong})
