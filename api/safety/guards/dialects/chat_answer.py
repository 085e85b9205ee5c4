"""What a guard model has said in a chat completion, and how likely it was to say something else. Pure."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from api.safety.guards.dialects.dialect import GuardNonsense, GuardRequest
from api.safety.guards.dialects.quoting import quoted

T = TypeVar("T")

MAX_ANSWER_TOKENS = 32
"""Tokens of a guard's answer. More let a guard that repeats itself work longer; fewer cut off names of hazards, which
then count as unknown ones.
"""
TOP_LOGPROBS = 5
"""Alternatives of each token that are asked for. OpenAI's limit for completions is 5. More make answers longer; fewer
may miss the other verdict, which then counts as impossible.
"""
QUESTION = "Please answer."
"""The user's turn before an answer. Templates of guards require one."""


class TokenAlternative(msgspec.Struct, frozen=True):
    token: str
    logprob: float


class AnswerToken(TokenAlternative, frozen=True):
    """A token of the answer."""

    top_logprobs: list[TokenAlternative] = []


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[AnswerToken] | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str


class _Choice(msgspec.Struct, frozen=True):
    message: _Message
    logprobs: _Logprobs | None = None


class _ChatCompletion(msgspec.Struct, frozen=True):
    choices: Annotated[list[_Choice], Meta(min_length=1, max_length=1)]


class ChatAnswer:
    """A guard's answer."""

    def __init__(self, answer: bytes) -> None:
        """Raises GuardNonsense."""
        choice = decoded(answer, _ChatCompletion).choices[0]
        self.text = choice.message.content.strip()
        self._tokens = (choice.logprobs and choice.logprobs.content) or []

    def alternatives(self, after: str = "") -> Mapping[str, float]:
        """The log probabilities of the first token after these words, in lower case, that the answer begins with. Blank
        tokens do not count. Empty if the guard gives none.
        """
        said = ""
        for token in self._tokens:
            if token.token.strip() and said.strip().lower() == after:
                return {one.token: one.logprob for one in (*token.top_logprobs, token)}
            said += token.token
        return {}


def chat_request(model: str, text: str, *, is_answer: bool) -> GuardRequest:
    """The guard's own chat template makes its prompt of the messages, and judges the last one."""
    question = [{"role": "user", "content": QUESTION}] if is_answer else []
    fields: dict[str, Any] = {
        "model": model,
        "messages": [*question, {"role": "assistant" if is_answer else "user", "content": quoted(text)}],
        "temperature": 0,
        "max_tokens": MAX_ANSWER_TOKENS,
        "logprobs": True,
        "top_logprobs": TOP_LOGPROBS,
    }
    return GuardRequest("/chat/completions", fields)


def decoded(answer: bytes, kind: type[T]) -> T:
    """The answer as JSON of this type. Raises GuardNonsense."""
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GuardNonsense(f"the answer is no {kind.__name__.strip('_')}: {error}") from error


def likelihoods(alternatives: Mapping[str, float], words: Sequence[str]) -> list[float] | None:
    """How likely the next word is each of these, in lower case, if it is one of them: from the log probabilities of the
    tokens that they may begin with. None if none of the tokens begins one of them.
    """
    sums = [sum(exp(min(0.0, alternatives[token])) for token in alternatives if _begins(word, token)) for word in words]
    total = sum(sums)
    return [one / total for one in sums] if total > 0 else None


def _begins(word: str, token: str) -> bool:
    beginning = token.strip().lower()
    return beginning != "" and word.startswith(beginning)
