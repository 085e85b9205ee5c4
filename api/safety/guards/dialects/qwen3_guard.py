"""The dialect of Qwen3Guard-Gen: lines `Safety:` with one of three levels, `Categories:`, and for answers `Refusal:`.
Pure.
"""

import re
from collections.abc import Mapping

from api.safety.guards.dialects.chat_answer import ChatAnswer, chat_request, likelihoods
from api.safety.guards.dialects.dialect import SAFE, UNSAFE, GuardNonsense, GuardRequest, HazardTable
from api.safety.verdict import MEDIUM_FROM, Category

HAZARDS = HazardTable(
    {
        "violent": (Category.VIOLENCE, Category.ILLICIT_VIOLENT),
        "non-violent illegal acts": (Category.ILLICIT,),
        "sexual content or sexual acts": (Category.SEXUAL,),
        "pii": (Category.PERSONAL_DATA,),
        "personally identifiable information": (Category.PERSONAL_DATA,),
        "suicide & self-harm": (Category.SELF_HARM,),
        "unethical acts": (Category.HATE, Category.HARASSMENT),  # it lists hate speech, insults, threats, defamation
        "politically sensitive topics": (),
        "copyright violation": (),
        "jailbreak": (Category.PROMPT_INJECTION,),
    }
)
CONTROVERSIAL = 0.6
"""Score of the level between safe and unsafe. Policies that block from MEDIUM on block it. Lower than MEDIUM_FROM lets
it pass there; HIGH_FROM or more has policies block it that block on HIGH alone.
"""
_LEVELS = ("unsafe", "controversial", "safe")
_SAFETY = re.compile(r"safety:\s*(unsafe|controversial|safe)")
_OF_SAFE = re.compile(r"categories:\s*none|refusal:\s*(yes|no)")
"""Lines that may follow a safe verdict."""


class Qwen3GuardDialect:
    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, text: str, *, is_answer: bool) -> GuardRequest:
        return chat_request(self._model, text, is_answer=is_answer)

    def scores(self, answer: bytes) -> Mapping[Category, float]:
        """What follows another verdict than "Safe" never makes a text safe."""
        said = ChatAnswer(answer)
        lines = [line.strip().lower() for line in said.text.splitlines() if line.strip()]
        verdict = _SAFETY.fullmatch(lines[0]) if lines else None
        if verdict is None:
            raise GuardNonsense(f"Qwen3Guard gives no level of safety, but {said.text[:40]!r}")
        likely = likelihoods(said.alternatives(after="safety:"), _LEVELS)
        score = likely[0] + likely[1] * CONTROVERSIAL if likely else None
        match verdict[1]:
            case "safe" if all(map(_OF_SAFE.fullmatch, lines[1:])):
                return HAZARDS.of_safe(SAFE if score is None else score)
            case "safe":
                raise GuardNonsense(f"Qwen3Guard calls a text safe, and adds {lines[1:]!r:.80}")
            case level:
                without = UNSAFE if level == "unsafe" else CONTROVERSIAL
                named = _categories_in(lines[1:])
                return HAZARDS.of_unsafe(named, without if score is None else max(score, MEDIUM_FROM))


def _categories_in(lines: list[str]) -> list[str]:
    listed = [line.partition(":")[2] for line in lines if line.startswith("categories:")]
    return [name for names in listed for name in names.split(",") if name.strip() != "none"]
