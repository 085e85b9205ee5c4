"""Prompts have the number of tokens that was asked for, with tokenizers that nobody has told."""

from pathlib import Path

import pytest

from cluster.load.client.endpoint import Message
from cluster.load.prompts.calibration import CountTokens, calibrated
from cluster.load.prompts.counting import Probe
from cluster.load.prompts.texts import FIRST_WORD, WORDS, PromptWriter
from cluster.repository import REPO_ROOT
from cluster.simulation.traffic.workload import PromptPiece, Speaker

DEMO = REPO_ROOT / "conf" / "models" / "baton-demo"
PIECES = [
    PromptPiece(Speaker.SYSTEM, "s", 300),
    PromptPiece(Speaker.USER, "1", 150),
    PromptPiece(Speaker.ASSISTANT, "2", 80),
    PromptPiece(Speaker.USER, "3", 70),
]


def counter(word_tokens: dict[str, int], template: int, asked: list[Probe] | None = None) -> CountTokens:
    async def count(probe: list[Message]) -> int | None:
        if asked is not None:
            asked.append(probe)
        words = [word for _, text in probe for word in text.split(" ")]
        return 2 + template * len(probe) + sum(word_tokens.get(word, 1) for word in words)

    return count


async def tokens(count: CountTokens, pieces: list[PromptPiece]) -> int | None:
    wording = await calibrated(count)
    return await count(PromptWriter(wording, "x").messages(pieces))


async def test_prompts_are_exact_and_usual_tokenizers_take_few_questions() -> None:
    asked: list[Probe] = []
    count = counter({}, 4, asked)
    wording = await calibrated(count)
    assert len(asked) <= 14 and wording.is_measured
    assert await count(PromptWriter(wording, "x").messages(PIECES)) == 600
    assert await count(PromptWriter(wording, "x").messages(PIECES[1:2])) == 150


async def test_words_of_several_tokens_are_left_out() -> None:
    assert await tokens(counter({word: 2 + number % 3 for number, word in enumerate(WORDS[1::2])}, 7), PIECES) == 600


async def test_words_that_are_another_number_of_tokens_at_the_begin_of_a_message_are_no_matter() -> None:
    inner = counter({}, 4)

    async def count(probe: Probe) -> int | None:
        total = await inner(probe)
        assert total is not None
        return total + sum(text.split(" ")[0] != FIRST_WORD for _, text in probe)

    assert await tokens(count, PIECES) == 600


async def test_prompts_are_about_right_if_no_word_is_one_token() -> None:
    found = await tokens(counter(dict.fromkeys(WORDS, 2), 3), PIECES)
    assert found == pytest.approx(600, rel=0.05)


async def test_endpoint_that_counts_nothing_leaves_words_unmeasured() -> None:
    async def count(_: Probe) -> int | None:
        return None

    wording = await calibrated(count)
    assert not wording.is_measured and wording.words == WORDS


async def test_template_that_refuses_system_messages_has_no_room_for_them() -> None:
    inner = counter({}, 4)

    async def count(probe: Probe) -> int | None:
        return None if probe[0][0] is Speaker.SYSTEM else await inner(probe)

    assert await tokens(count, PIECES[1:]) is not None
    assert (await calibrated(count)).system_overhead == 0


async def test_file_of_a_tokenizer_tells_the_words() -> None:
    asked: list[Probe] = []
    wording = await calibrated(counter({}, 4, asked), DEMO)
    assert set(wording.words) < set(WORDS) and len(asked) <= 6


async def test_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="is no tokenizer"):
        await calibrated(counter({}, 4), tmp_path)
