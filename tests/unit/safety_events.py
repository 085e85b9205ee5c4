"""Safety events, as tests need them."""

from itertools import count
from typing import Any

from api.safety.audit.event import Direction, SafetyAction, SafetyEvent
from api.safety.verdict import Category, StageVerdict

_NUMBERS = count(1)


def a_safety_event(**fields: Any) -> SafetyEvent:
    number = next(_NUMBERS)
    made: dict[str, Any] = {
        "id": f"sfe_{number}",
        "tenant": "alice",
        "request_id": f"req_{number}",
        "at": 1_700_000_000.25 + number,
        "direction": Direction.INPUT,
        "action": SafetyAction.BLOCKED,
        "policy_version": "v1",
        "categories": [Category.HATE],
        "verdicts": [StageVerdict("lists", "1", {Category.HATE: 0.1})],
    }
    return SafetyEvent(**(made | fields))
