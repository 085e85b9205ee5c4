"""Asks an endpoint, or reads a tokenizer's file, for what its model makes of words.

An endpoint is asked with prompts whose answers have one token, one after another. If it counts no tokens, each word
passes for one token, and the report says so.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from cluster.load.prompts.counting import (
    ENOUGH_WORDS,
    LEAST_WORDS,
    PROBE_WORDS,
    TEST_WORDS,
    Probe,
    first_word_probe,
    probes,
    system_probe,
    test_probe,
    tokens_of,
    turn_probe,
)
from cluster.load.prompts.texts import WORDS, Wording

CountTokens = Callable[[Probe], Awaitable[int | None]]
"""Returns the tokens of a prompt, or None if the endpoint does not answer or counts none."""


async def calibrated(count: CountTokens, tokenizer: Path | None = None) -> Wording:
    """What the model makes of words. The words are those of `tokenizer`, if it is given.

    Raises:
        ValueError: the file is no tokenizer.
    """
    few, many = await count(first_word_probe(1)), await count(first_word_probe(1 + PROBE_WORDS))
    known = _words_of(tokenizer) if tokenizer else None
    if few is None or many is None:
        return Wording(words=known or WORDS, is_measured=known is not None)
    first_overhead = max(0, few - 1)
    words = known or (await _single_words(count, few) if many == few + PROBE_WORDS else ())
    if len(words) < LEAST_WORDS:
        return await _of_any_length(count, first_overhead)
    wording = await _with_template(count, Wording(words=words, first_overhead=first_overhead, is_measured=True))
    tested = await count(test_probe(wording))
    if tested is None or tested == first_overhead + TEST_WORDS:
        return wording
    return msgspec.structs.replace(wording, tokens_per_word=max(0.1, (tested - first_overhead) / TEST_WORDS))


async def _single_words(count: CountTokens, alone: int) -> tuple[str, ...]:
    """`alone`: tokens of a prompt of FIRST_WORD, which the others have in front."""
    found: list[str] = []
    for probe, words in probes():
        if (total := await count(probe)) is None:
            break
        found += [word for word, tokens in tokens_of(words, total, alone).items() if tokens == 1]
        if len(found) >= ENOUGH_WORDS:
            break
    return tuple(found)


async def _of_any_length(count: CountTokens, first_overhead: int) -> Wording:
    wording = Wording(first_overhead=first_overhead, is_measured=True)
    total = await count(test_probe(wording))
    per_word = (total - first_overhead) / TEST_WORDS if total else 1.0
    return msgspec.structs.replace(wording, tokens_per_word=max(0.1, per_word))


async def _with_template(count: CountTokens, wording: Wording) -> Wording:
    """With what a system message and a further turn take. Templates may refuse either."""
    system, turn = await count(system_probe()), await count(turn_probe())
    alone = wording.first_overhead
    return msgspec.structs.replace(
        wording,
        system_overhead=max(0, system - alone - 2 * PROBE_WORDS) if system else 0,
        turn_overhead=max(0, turn - alone - 3 * PROBE_WORDS) if turn else 0,
    )


def _words_of(file: Path) -> tuple[str, ...]:
    """The words that are one token each, with the space before them."""
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise ValueError(f"{file} is no tokenizer: {error}") from error
    few = len(tokenizer.encode("the", add_special_tokens=False))
    words = [word for word in WORDS if len(tokenizer.encode(f"the {word}", add_special_tokens=False)) == few + 1]
    if len(words) < LEAST_WORDS:
        raise ValueError(f"{file} has one token for too few words of those that prompts are made of")
    return tuple(words)
