"""Makes the texts of prompts from words of which each is one token. Pure.

A piece of a prompt has a name. Its text follows from the name and the salt of the run alone, so that prompts share what
their pieces share. Two pieces with different names differ within their first words, so that no cache takes one for the
other. Most of a text is put together from prepared sentences, so that long prompts take little time.
"""

from collections.abc import Sequence
from hashlib import shake_256

import msgspec

from cluster.load.client.endpoint import Message
from cluster.simulation.traffic.workload import PromptPiece, Speaker

WORDS = tuple(
    (  # noqa: SIM905  # word lists read better as text
        "the of and to in is that for it was on are as with his they at be this from have or by one had not but what "
        "all were when we there can an your which their said if do will each about how up out them then she many some "
        "so these would other into has more her two like him see time could no make than first been its who now people "
        "my made over did down only way find use may water long little very after words called just where most know"
    ).split()
)
"""Frequent English words. Nearly all tokenizers have one token for each, with the space before it."""
FIRST_WORD = WORDS[0]
"""Begins each piece: what a word is without a space before it, only this one must tell."""
FIRST_WORDS = 8
"""Further words at its begin that are chosen one by one. Fewer let two pieces begin alike; more take longer."""
SENTENCE_WORDS = 32
"""Words of a prepared sentence. Longer ones make long prompts faster, and shorter ones vary more."""
NUM_SENTENCES = 256
"""Prepared sentences: one byte of a hash chooses one."""


class Wording(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's tokenizer and template make of words."""

    words: tuple[str, ...] = WORDS
    tokens_per_word: float = 1.0
    """1 if each word is one token. Another number is a mean, with which prompts have about the right length."""
    first_overhead: int = 0
    """Tokens of the template around a prompt of one message."""
    system_overhead: int = 0
    """Tokens that a system message takes beyond its words."""
    turn_overhead: int = 0
    """Tokens that an answer and the next message take beyond their words."""
    is_measured: bool = False
    """Whether the endpoint's counts, or its tokenizer, have told these figures."""


class PromptWriter:
    def __init__(self, wording: Wording, salt: str) -> None:
        """`salt`: prompts of runs with different salts share nothing."""
        self._wording = wording
        self._salt = salt
        self._sentences = [self._sentence(number) for number in range(NUM_SENTENCES)]

    def messages(self, pieces: Sequence[PromptPiece]) -> list[Message]:
        """The messages of a prompt. Neighbouring pieces of one speaker are one message."""
        messages: list[Message] = []
        for piece, overhead in zip(pieces, self._overheads(pieces), strict=True):
            text = self.text(piece.name, piece.num_tokens - overhead)
            if messages and messages[-1][0] is piece.speaker:
                messages[-1] = (piece.speaker, f"{messages[-1][1]} {text}")
            else:
                messages.append((piece.speaker, text))
        return messages

    def text(self, name: str, num_tokens: int) -> str:
        """A text of so many tokens, and of one word at least."""
        num_words = max(1, round(num_tokens / self._wording.tokens_per_word))
        num_whole, num_last = divmod(max(0, num_words - 1 - FIRST_WORDS), SENTENCE_WORDS)
        digest = shake_256(f"{self._salt}/{name}".encode()).digest(2 * FIRST_WORDS + num_whole + 1)
        words = self._wording.words
        first = [
            words[int.from_bytes(digest[at : at + 2]) % len(words)]
            for at in range(0, 2 * min(FIRST_WORDS, num_words - 1), 2)
        ]
        chosen = [self._sentences[byte] for byte in digest[2 * FIRST_WORDS :]]
        last = chosen.pop().split(" ", num_last)[:num_last]
        return " ".join([FIRST_WORD, *first, *chosen, *last])

    def _overheads(self, pieces: Sequence[PromptPiece]) -> list[int]:
        """Tokens of the template that each piece leaves room for. Pieces that several prompts begin with leave the same
        room in each.
        """
        wording, overheads = self._wording, []
        has_first = False
        for number, piece in enumerate(pieces):
            is_last_of_message = number + 1 == len(pieces) or pieces[number + 1].speaker is not piece.speaker
            overhead = 0
            if piece.speaker is Speaker.SYSTEM and is_last_of_message:
                overhead = wording.system_overhead
            elif piece.speaker is Speaker.USER and is_last_of_message:
                overhead = wording.turn_overhead if has_first else wording.first_overhead
                has_first = True
            overheads.append(overhead)
        return overheads

    def _sentence(self, number: int) -> str:
        digest = shake_256(f"sentence {number}".encode()).digest(2 * SENTENCE_WORDS)
        words = self._wording.words
        return " ".join(words[int.from_bytes(digest[at : at + 2]) % len(words)] for at in range(0, len(digest), 2))
