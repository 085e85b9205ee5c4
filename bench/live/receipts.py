"""What Baton's receipts say of its requests: where each ran, what was predicted, and what came."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.fronts.systems import Baton, System, get
from bench.live.goodput import Answer

Pair = tuple[float, float]


@dataclass(frozen=True)
class Fate:
    path: str
    attempts: int
    predicted: Pair | None
    """TTFT and TPOT."""
    actual: tuple[float | None, float | None]
    considered: list[Any]
    """The best candidate of each path, the chosen one first."""


def fates(system: System, answers: Sequence[Answer]) -> list[Fate | None]:
    """What became of each answer, or None if it has no receipt. Other systems write no receipts."""
    if not isinstance(system, Baton):
        return []
    body = get(system.admin_port, f"/baton/receipts?last={2 * len(answers)}")
    by_id = {receipt["request_id"]: receipt for receipt in json.loads(body or '{"receipts": []}')["receipts"]}
    return [_fate(by_id.get(answer.answer_id)) for answer in answers]


def _fate(receipt: dict[str, Any] | None) -> Fate | None:
    placement = receipt and receipt["placement"]
    if not receipt or not placement:
        return None
    predicted = placement["predicted"]
    return Fate(
        path=placement["path"],
        attempts=receipt["num_attempts"],
        predicted=(predicted["ttft_s"], predicted["tpot_s"]) if predicted else None,
        actual=(receipt["ttft_s"], receipt["tpot_s"]),
        considered=placement["considered"],
    )
