"""Finds out which words are one token for a model, and what its template adds, from counted prompts. Pure.

`usage.prompt_tokens` counts the tokens of a whole prompt. A prompt that has the first word once, the second BASE times
and the third BASE * BASE times tells the tokens of each: its count, less that of the template, is a number in base BASE
whose digits they are. A word at the begin of a message has no space before it, and may have other tokens there. So
FIRST_WORD begins each message, here and in prompts.
"""

from collections.abc import Iterator, Sequence

from cluster.load.client.endpoint import Message
from cluster.load.prompts.texts import FIRST_WORD, WORDS, PromptWriter, Wording
from cluster.simulation.traffic.workload import PromptPiece, Speaker

BASE = 6
"""Most tokens of a word, plus one. Higher needs longer prompts; lower misreads words of many tokens."""
WORDS_PER_PROMPT = 3
ENOUGH_WORDS = 24
"""Words with one token after which no more are looked for. More ask more requests; fewer make texts that are alike."""
LEAST_WORDS = 8
"""Fewest words with which texts are made. With fewer, prompts have words of any length, and about the right length."""
PROBE_WORDS = 32
"""Words of the prompts that the template is measured with."""
TEST_WORDS = 200
"""Words of the prompt that tests the result. More notice rarer words that join; fewer are faster."""

Probe = list[Message]


def probes() -> Iterator[tuple[Probe, tuple[str, ...]]]:
    """Prompts, each with the words that its count tells of."""
    for start in range(0, len(WORDS), WORDS_PER_PROMPT):
        words = WORDS[start : start + WORDS_PER_PROMPT]
        repeated = [word for power, word in enumerate(words) for _ in range(BASE**power)]
        yield [(Speaker.USER, " ".join([FIRST_WORD, *repeated]))], words


def first_word_probe(count: int) -> Probe:
    return [(Speaker.USER, " ".join([FIRST_WORD] * count))]


def tokens_of(words: Sequence[str], count: int, overhead: int) -> dict[str, int]:
    """Tokens of each word of a probe, from the tokens of the whole prompt. Empty if they are no such digits."""
    left, found = count - overhead, {}
    for word in words:
        left, found[word] = divmod(left, BASE)
    return found if left == 0 and all(tokens > 0 for tokens in found.values()) else {}


def system_probe() -> Probe:
    text = " ".join([FIRST_WORD] * PROBE_WORDS)
    return [(Speaker.SYSTEM, text), (Speaker.USER, text)]


def turn_probe() -> Probe:
    text = " ".join([FIRST_WORD] * PROBE_WORDS)
    return [(Speaker.USER, text), (Speaker.ASSISTANT, text), (Speaker.USER, text)]


def test_probe(wording: Wording) -> Probe:
    """A prompt of as many words as TEST_WORDS, in any order."""
    return PromptWriter(wording, "test").messages(
        [PromptPiece(Speaker.USER, "test", wording.first_overhead + TEST_WORDS)]
    )
