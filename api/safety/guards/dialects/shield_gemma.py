"""The dialect of ShieldGemma: one question for each policy, which it answers with `Yes`, it is violated, or `No`. Pure.

The questions go as the prompts of one completion, not of a chat: the template of ShieldGemma's chats needs an argument
that OpenAI's API does not have. The model's card says how a question is put.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from api.safety.guards.dialects.chat_answer import QUESTION, TOP_LOGPROBS, decoded, likelihoods
from api.safety.guards.dialects.dialect import SAFE, UNSAFE, GuardNonsense, GuardRequest
from api.safety.guards.dialects.quoting import quoted
from api.safety.verdict import MEDIUM_FROM, Category


class _ShieldPolicy(NamedTuple):
    categories: tuple[Category, ...]
    name: str
    content: str
    """What must not occur."""


POLICIES = (
    _ShieldPolicy(
        (Category.ILLICIT_VIOLENT, Category.SELF_HARM),
        "No Dangerous Content",
        "that harms oneself and/or others (e.g., accessing or building firearms and explosive devices, promotion of "
        "terrorism, instructions for suicide)",
    ),
    _ShieldPolicy(
        (Category.HARASSMENT,),
        "No Harassment",
        "that is malicious, intimidating, bullying, or abusive and targets another individual (e.g., physical threats, "
        "denial of tragic events, disparaging victims of violence)",
    ),
    _ShieldPolicy(
        (Category.HATE,),
        "No Hate Speech",
        "that targets identity and/or protected attributes (e.g., racial slurs, promotion of discrimination, calls to "
        "violence against protected groups)",
    ),
    _ShieldPolicy(
        (Category.SEXUAL,),
        "No Sexually Explicit Information",
        "with references to sexual acts or other lewd content (e.g., sexually graphic descriptions, content aimed at "
        "causing arousal)",
    ),
)
"""The four policies that the model is trained on."""


class _CompletionLogprobs(msgspec.Struct, frozen=True):
    top_logprobs: list[dict[str, float] | None] | None = None


class _CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: _CompletionLogprobs | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_CompletionChoice]


class ShieldGemmaDialect:
    def __init__(self, model: str) -> None:
        self._model = model

    def request(self, text: str, *, is_answer: bool) -> GuardRequest:
        fields: dict[str, Any] = {
            "model": self._model,
            "prompt": [_prompt(policy, text, is_answer) for policy in POLICIES],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": TOP_LOGPROBS,
        }
        return GuardRequest("/completions", fields)

    def scores(self, answer: bytes) -> Mapping[Category, float]:
        choices = sorted(decoded(answer, _Completion).choices, key=lambda choice: choice.index)
        if [choice.index for choice in choices] != list(range(len(POLICIES))):
            raise GuardNonsense(f"ShieldGemma has {len(POLICIES)} questions, and answers {len(choices)}")
        return {
            category: score
            for policy, score in zip(POLICIES, map(_score, choices), strict=True)
            for category in policy.categories
        }


def _score(choice: _CompletionChoice) -> float:
    alternatives = (choice.logprobs and choice.logprobs.top_logprobs) or [None]
    likely = likelihoods(alternatives[0] or {}, ("yes", "no"))
    match choice.text.strip().lower():
        case "yes":
            return max(likely[0], MEDIUM_FROM) if likely else UNSAFE
        case "no":
            return likely[0] if likely else SAFE
        case _:
            raise GuardNonsense(f"ShieldGemma says neither Yes nor No, but {choice.text[:40]!r}")


def _prompt(policy: _ShieldPolicy, text: str, is_answer: bool) -> str:
    if is_answer:
        judged, speaker, principle = "an AI response to a prompt", "Chatbot Response", "The chatbot shall not generate"
        turns = _turn("Human Question", QUESTION) + _turn(speaker, quoted(text))
    else:
        judged, speaker, principle = (
            "a user prompt",
            "human question",
            "The prompt shall not contain or seek generation of",
        )
        turns = _turn("Human Question", quoted(text))
    return (
        f"You are a policy expert trying to help determine whether {judged} is in violation of the defined safety "
        f"policies.\n\n{turns}"
        "Our safety principle is defined in the below:\n\n"
        f'* "{policy.name}": {principle} content {policy.content}.\n\n'
        f"===\n\nDoes the {speaker} violate the above principle? Your answer must start with 'Yes' or 'No'. And then "
        "walk through step by step to be sure we answer correctly.\n\n"
    )


def _turn(speaker: str, text: str) -> str:
    return f"<start_of_turn>\n{speaker}: {text}\n<end_of_turn>\n\n"
