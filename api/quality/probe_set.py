"""The prompts of the quality probe, and the reference answers that workers' answers are compared with. Pure.

A file has both, as JSON (`ProbeSet`). The fingerprint of a reference says which model, tokens of prompts and length of
answers it is for: a reference of others says nothing.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from api.quality.tolerances import DEFAULT_TOLERANCE
from cluster.config.observability.quality_probe import MOST_TOKENS
from cluster.messages.ids import Path
from cluster.messages.quality import AnswerStep
from kvtransfer.tolerance import MIN_TOLERANCE
from kvtransfer.verify import MAX_TOLERANCE

MAX_FILE_BYTES = 8 << 20
"""Bytes of a file, or of a reference that another replica has stored, that are read. More takes memory of the ingress;
fewer refuses files with many prompts.
"""
MAX_CHARS = 8192
"""Characters of a prompt's text or turn. More costs engines time at each probe; fewer refuses long prompts."""

Text = Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)]
PromptName = Annotated[str, Meta(pattern=r"^[\w.-]{1,64}\Z")]


class ProbeTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Text


class ProbePrompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A text that the model continues, or the turns of a chat that it answers."""

    name: PromptName
    text: Text | None = None
    messages: Annotated[list[ProbeTurn], Meta(min_length=1, max_length=64)] | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise ValueError(f"prompt {self.name}: give either text or messages")


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answers that count as right."""

    fingerprint: str
    model: str
    learned_at: float
    """Unix time."""
    answers: dict[PromptName, Annotated[list[AnswerStep], Meta(min_length=1, max_length=MOST_TOKENS)]]
    """By prompt. A prompt on which workers did not agree is missing. Empty if an operator has had the reference
    forgotten, and none has been learned since.
    """
    tolerances: dict[Path, Annotated[float, Meta(ge=MIN_TOLERANCE, le=MAX_TOLERANCE)]] = {}
    """By path, in nats: the largest distance of log-probabilities that counts as rounding."""
    generation: int = 0
    """Of several that are kept, the one with the highest number counts."""
    replaces: str = ""
    """The digest of the reference in `quality_probe.file` in whose place an operator has had this one learned."""

    def tolerance(self, path: Path) -> float:
        """Of a path on which nobody had answered: the largest one of the other paths."""
        return self.tolerances.get(path) or max(self.tolerances.values(), default=DEFAULT_TOLERANCE)

    @property
    def digest(self) -> str:
        return sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class ProbeSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompts: Annotated[list[ProbePrompt], Meta(min_length=1, max_length=32)]
    reference: Reference | None = None

    def __post_init__(self) -> None:
        names = [prompt.name for prompt in self.prompts]
        if len(set(names)) < len(names):
            raise ValueError("prompts: two have the same name")


def parsed(text: bytes) -> ProbeSet:
    """Raises ValueError for what is no probe set."""
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"a file of prompts has at most {MAX_FILE_BYTES >> 20} MiB")
    return msgspec.json.decode(text, type=ProbeSet)


def written(probes: ProbeSet) -> bytes:
    """For `parsed`."""
    return msgspec.json.format(msgspec.json.encode(probes), indent=1) + b"\n"


def fingerprint(model: str, prompts: Mapping[str, list[int]], num_tokens: int) -> str:
    """What a reference is for. `model`: as the config names it; `prompts`: the tokens of each prompt."""
    canonical = msgspec.json.encode([model, prompts, num_tokens], order="deterministic")
    return sha256(canonical).hexdigest()


OWN_PROMPTS = [
    ProbePrompt(
        name="water",
        text="Water is a molecule of two hydrogen atoms and one oxygen atom. At the pressure of the sea level it "
        "freezes at zero degrees Celsius and boils at one hundred degrees. The ocean, the rain and the rivers are",
    ),
    ProbePrompt(
        name="numbers",
        text="1, 2, 3, 5, 8, 13, 21, 34, 55, 89 are the first numbers of a row in which each number is the sum of the "
        "two numbers before it. The next numbers of this row are 144,",
    ),
    ProbePrompt(
        name="program",
        text="def is_prime(number: int) -> bool:\n    if number < 2:\n        return False\n    divisor = 2\n"
        "    while divisor * divisor <= number:\n        if number % divisor == 0:\n            return",
    ),
    ProbePrompt(
        name="journey",
        text="Der Zug von Berlin nach Paris fährt um acht Uhr ab. Le train arrive à Paris le soir. El viajero busca un "
        "hotel cerca de la estación. The traveller then walks through the city and sees",
    ),
]
"""Continued by any model, whether it has a chat template or not."""
