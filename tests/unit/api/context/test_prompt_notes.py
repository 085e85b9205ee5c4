"""What the model is told beside the items of a conversation, and in which words."""

from typing import Any

import pytest

from api.context.prompt_notes import (
    EXCERPT_CHARS,
    composed,
    memory_note,
    num_images,
    shortened,
    spoken,
    text_of,
    user_message,
)
from tests.unit.conversations import called, numbered, returned, said

IMAGE = {"type": "input_image", "image_url": "data:,", "detail": "auto"}


def texts(item: dict[str, Any]) -> list[str]:
    return [part["text"] for part in item["content"]]


def test_summary_is_told_in_the_first_message_that_is_kept() -> None:
    items = numbered([said("developer", "Be kind."), said("user", "a"), said("assistant", "b"), said("user", "c")])
    first, second = composed(items, 3, "All so far.")
    assert first == items[0]
    assert texts(second) == ["What was said before, in short:\nAll so far.\n", "c"]
    assert texts(items[3]) == ["c"]


def test_summary_comes_after_the_instructions_of_a_turn() -> None:
    items = numbered([said("user", "a"), said("assistant", "b"), said("developer", "Now in verse."), said("user", "c")])
    instruction, question = composed(items, 2, "All so far.")
    assert (instruction, texts(question)[1]) == (items[2], "c")


def test_summary_before_anything_but_a_question_is_a_message_of_its_own() -> None:
    answer = said("assistant", "b", "item_0")
    note, kept = composed([answer], 0, "All so far.")
    assert (note, kept) == (user_message("What was said before, in short:\nAll so far.\n"), answer)
    assert composed([], 0, "All so far.") == [note]


def test_clients_compaction_is_told_where_it_is() -> None:
    compaction = {"type": "compaction", "summary": "Once."}
    items = [said("user", "a"), compaction, said("user", "b")]
    first, second = composed(items, 0)
    assert texts(first) == ["a"]
    assert texts(second) == ["What was said before, in short:\nOnce.\n", "b"]


def test_memory_is_told_in_the_message_that_it_belongs_to() -> None:
    items = numbered([said("user", "a"), said("assistant", "b"), said("user", "c")])
    note = memory_note([said("user", "One"), said("assistant", "Two " * EXCERPT_CHARS)])
    sent = composed(items, 0, None, {"item_2": note})
    assert sent[:2] == items[:2]
    assert texts(sent[2]) == [note, "c"]
    assert note.startswith("Said earlier in this conversation:\n- User: One\n- Assistant: Two Two")
    assert len(note) < EXCERPT_CHARS + 100


def test_transcript_has_who_said_what_and_nothing_of_what_was_thought() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    items = [said("user", "a"), thought, called("c"), returned("c"), said("assistant", "b")]
    transcript = "".join(spoken(item, 100) for item in items)
    assert transcript == "User: a\nAssistant calls look {}\nResult: it\nAssistant: b\n"
    assert text_of(thought) == "Hm"


@pytest.mark.parametrize(("max_chars", "text"), [(9, "abcdefghi"), (7, "ab … hi"), (1, "a … i")])
def test_long_text_loses_its_middle(max_chars: int, text: str) -> None:
    assert shortened("abcdefghi", max_chars) == text


def test_images_are_counted_in_messages_and_results() -> None:
    assert num_images(said("user", "Look") | {"content": [IMAGE, IMAGE]}) == 2
    assert num_images(returned("c", output=[IMAGE])) == 1
    assert num_images(returned("c")) == num_images(called("c")) == 0
