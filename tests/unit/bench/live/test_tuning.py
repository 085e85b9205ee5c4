from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.fronts.setting import Setting
from bench.goodput_real import step_sizes
from bench.live import tuning
from bench.live.contenders import Contender, EngineRules
from bench.live.rounds import Plan, Results
from bench.live.tuning import STEP_TOKENS, Tried, best, in_order, rows, try_all


def test_best_attains_most_over_all_mixes() -> None:
    tried = [
        Tried(EngineRules(128), {"chats": 0.9, "mixed": 0.6}),
        Tried(EngineRules(512), {"chats": 0.8, "mixed": 0.9}),
        Tried(EngineRules(2048), {"a": 0.8}),
    ]
    assert best(tried).rules.step_tokens == 512


def test_table_shows_each_size_by_mix_because_one_mix_may_want_another_size() -> None:
    tried = [
        Tried(EngineRules(512), {"chats": 0.8, "mixed": 0.9}),
        Tried(EngineRules(128, by_priority=True), {"chats": 0.9, "mixed": 0.6}),
    ]
    assert rows(tried) == [
        ("engines", "chats", "mixed", "mean"),
        ("steps of 128 tokens, by priority", "90.0 %", "60.0 %", "75.0 %"),
        ("steps of 512 tokens", "80.0 %", "90.0 %", "85.0 %"),
    ]


def test_configured_step_comes_first_and_each_once() -> None:
    assert in_order([128, 512, 2048, 128], configured=2048) == [2048, 128, 512]
    assert in_order([128, 512], configured=2048) == [128, 512]


@pytest.mark.parametrize(
    ("asked", "is_quick", "sizes"),
    [
        (None, False, [2048, 128, 256, 512]),
        (None, True, [2048]),
        ([512], False, [512]),
        ([512, 2048], True, [2048, 512]),
    ],
)
def test_quick_run_tries_the_configured_step_alone(asked: list[int] | None, is_quick: bool, sizes: list[int]) -> None:
    assert step_sizes(asked, 2048, is_quick) == sizes
    assert set(STEP_TOKENS) == {128, 256, 512, 2048}


class FakeServers:
    """Colocated servers that are started and stopped, and attain what their rules say."""

    up: ClassVar[list[EngineRules]] = []

    def __init__(self, setting: Setting, generator: Any, num_servers: int, rules: EngineRules) -> None:
        self.name, self.rules = "vllm", rules

    def start(self) -> None:
        assert not self.up, "one after another"
        self.up.append(self.rules)

    def interrupt(self) -> None:
        self.up.remove(self.rules)

    def stop(self) -> None:
        assert not self.up


class FakeMeasurement:
    calibrated_with: ClassVar[list[int]] = []

    def __init__(self, plan: Plan, contenders: list[Contender], *_: object) -> None:
        system: Any = contenders[0].system
        self._step_tokens, self._by_priority = system.rules.step_tokens, system.rules.by_priority

    def calibrated(self) -> Results:
        self.calibrated_with.append(self._step_tokens)
        return Results({}, {})

    def attained(self, contender: Contender, results: Results) -> dict[str, float]:
        return {"mixed": (2 if self._by_priority else 1) / self._step_tokens}


def test_each_choice_runs_alone_and_all_have_the_same_slos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Colocated", FakeServers)
    monkeypatch.setattr(tuning, "Measurement", FakeMeasurement)
    setting = Setting(
        tmp_path, {"applications": [{"args": {"model": "m", "engine": {"max_num_batched_tokens": 2048}}}]}
    )
    plan, no_driver = Plan(["mixed"], {"mixed": 0.6}, 1, 1.0, 5.0, 0.1, 3.0, 16, 0), None
    nobody: Any = no_driver
    tried = try_all(STEP_TOKENS, 2, plan, setting, nobody, lambda _: None)
    assert [one.rules.step_tokens for one in tried] == [2048, 128, 256, 512, 128]
    assert FakeMeasurement.calibrated_with == [2048]
    assert FakeServers.up == []
    assert best(tried).rules == EngineRules(128, by_priority=True)
