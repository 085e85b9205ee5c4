"""The dialect of Llama Guard 3 and 4: `safe`, or `unsafe` and the codes of hazards in the next line. Pure."""

import re
from collections.abc import Mapping

from api.safety.guards.dialects.chat_answer import ChatAnswer, chat_request, likelihoods
from api.safety.guards.dialects.dialect import SAFE, UNSAFE, GuardNonsense, GuardRequest, HazardTable
from api.safety.verdict import MEDIUM_FROM, Category

HAZARDS = HazardTable(
    {
        "s1": (Category.VIOLENCE, Category.ILLICIT_VIOLENT),  # violent crimes
        "s2": (Category.ILLICIT,),  # non-violent crimes
        "s3": (Category.SEXUAL, Category.ILLICIT),  # sex-related crimes
        "s4": (Category.SEXUAL_MINORS,),  # child sexual exploitation
        "s5": (Category.HARASSMENT,),  # defamation
        "s6": (),  # specialized advice
        "s7": (Category.PERSONAL_DATA,),  # privacy
        "s8": (),  # intellectual property
        "s9": (Category.ILLICIT_VIOLENT,),  # indiscriminate weapons
        "s10": (Category.HATE,),
        "s11": (Category.SELF_HARM,),  # suicide and self-harm
        "s12": (Category.SEXUAL,),  # sexual content
        "s13": (),  # elections
        "s14": (Category.ILLICIT,),  # code interpreter abuse
    }
)
_SEPARATOR = re.compile(r"[\s,;.]+")


class LlamaGuardDialect:
    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, text: str, *, is_answer: bool) -> GuardRequest:
        return chat_request(self._model, text, is_answer=is_answer)

    def scores(self, answer: bytes) -> Mapping[Category, float]:
        """What follows "unsafe" never makes a text safe; what follows "safe" is nonsense."""
        said = ChatAnswer(answer)
        verdict = said.text.lower()
        likely = likelihoods(said.alternatives(), ("unsafe", "safe"))
        if verdict.startswith("unsafe"):
            codes = _SEPARATOR.split(verdict.removeprefix("unsafe"))
            return HAZARDS.of_unsafe(codes, max(likely[0], MEDIUM_FROM) if likely else UNSAFE)
        if verdict == "safe":
            return HAZARDS.of_safe(likely[0] if likely else SAFE)
        raise GuardNonsense(f"Llama Guard says neither safe nor unsafe, but {said.text[:40]!r}")
