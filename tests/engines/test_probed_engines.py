"""The quality probe on real engines: they agree with themselves on every path, and a wrong weight shows."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.quality.comparison import ProbeResult
from api.quality.probe_set import OWN_PROMPTS
from tests.engines.engine_program import run
from tests.engines.probed_engines import NUM_TOKENS


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("probed")
    run("probed_engines", str(folder))
    return json.loads((folder / "said.json").read_text())


@pytest.mark.parametrize("path", ["D, computed", "D, cached", "P", "P->D"])
def test_engine_agrees_with_the_reference_on_each_path(seen: dict[str, Any], path: str) -> None:
    assert seen["lengths"] == [NUM_TOKENS] * len(OWN_PROMPTS)
    results = {name: ProbeResult(result) for name, (result, _) in seen["said"][path].items()}
    assert all(result.is_right for result in results.values()), seen["said"][path]


def test_engine_with_a_wrong_weight_differs_on_most_prompts(seen: dict[str, Any]) -> None:
    results = [result for result, _ in seen["said"]["wrong"].values()]
    assert results.count(ProbeResult.DIFFERS) > len(results) / 2, seen["said"]["wrong"]
