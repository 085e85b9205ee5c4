"""A count of tokens tells how many each word has."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.load.prompts.counting import BASE, WORDS_PER_PROMPT, probes, tokens_of
from cluster.load.prompts.texts import WORDS


@given(st.lists(st.integers(1, BASE - 1), min_size=WORDS_PER_PROMPT, max_size=WORDS_PER_PROMPT), st.integers(0, 50))
def test_tokens_of_each_word_are_found(tokens: list[int], overhead: int) -> None:
    (_, text), *_ = next(iter(probes()))[0]
    words = WORDS[:WORDS_PER_PROMPT]
    of = dict(zip(words, tokens, strict=True))
    count = overhead + sum(of[word] for word in text.split(" ")[1:])
    assert tokens_of(words, count, overhead) == of


def test_count_that_cannot_be_tells_nothing() -> None:
    words = WORDS[:WORDS_PER_PROMPT]
    assert tokens_of(words, 0, 0) == {}
    assert tokens_of(words, BASE**WORDS_PER_PROMPT * 3, 0) == {}


def test_probes_have_each_word_once() -> None:
    assert tuple(word for _, words in probes() for word in words) == WORDS
