"""Texts have as many words as asked for, share what their pieces share, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.load.prompts.texts import PromptWriter, Wording
from cluster.simulation.traffic.workload import PromptPiece, Speaker

WRITER = PromptWriter(Wording(), "a")
WITH_TEMPLATE = Wording(first_overhead=9, system_overhead=5, turn_overhead=7)


def num_words(text: str) -> int:
    return len(text.split(" "))


@given(st.sampled_from(["", "a", "session 7, 3", "ü"]), st.integers(1, 3000))
def test_text_has_as_many_words_as_tokens(name: str, num_tokens: int) -> None:
    assert num_words(WRITER.text(name, num_tokens)) == num_tokens


@given(st.sampled_from(["", "a", "session 7, 3", "ü"]), st.integers(1, 500), st.integers(0, 500))
def test_shorter_text_of_a_name_begins_the_longer_one(name: str, num_tokens: int, more: int) -> None:
    longer = WRITER.text(name, num_tokens + more)
    assert longer.split(" ")[:num_tokens] == WRITER.text(name, num_tokens).split(" ")


def test_names_and_salts_differ_within_the_first_words() -> None:
    texts = {WRITER.text(f"{number}", 8) for number in range(500)}
    other = PromptWriter(Wording(), "b")
    texts |= {other.text(f"{number}", 8) for number in range(500)}
    assert len(texts) == 1000


def test_same_name_and_salt_give_the_same_text() -> None:
    assert WRITER.text("a", 100) == PromptWriter(Wording(), "a").text("a", 100)


def test_mean_tokens_of_words_give_the_number_of_words() -> None:
    writer = PromptWriter(Wording(tokens_per_word=2.0), "a")
    assert num_words(writer.text("a", 100)) == 50


def test_messages_leave_room_for_the_template() -> None:
    pieces = [
        PromptPiece(Speaker.SYSTEM, "s", 50),
        PromptPiece(Speaker.USER, "1", 30),
        PromptPiece(Speaker.ASSISTANT, "2", 20),
        PromptPiece(Speaker.USER, "3", 40),
    ]
    messages = PromptWriter(WITH_TEMPLATE, "a").messages(pieces)
    assert [speaker for speaker, _ in messages] == ["system", "user", "assistant", "user"]
    assert [num_words(text) for _, text in messages] == [45, 21, 20, 33]


def test_later_turn_begins_with_the_messages_of_the_turn_before() -> None:
    pieces = [
        PromptPiece(Speaker.USER, "1", 30),
        PromptPiece(Speaker.ASSISTANT, "2", 20),
        PromptPiece(Speaker.USER, "3", 40),
    ]
    writer = PromptWriter(WITH_TEMPLATE, "a")
    assert writer.messages(pieces)[:1] == writer.messages(pieces[:1])


def test_pieces_of_one_speaker_are_one_message() -> None:
    writer = PromptWriter(Wording(first_overhead=4), "a")
    ((speaker, text),) = writer.messages(
        [PromptPiece(Speaker.USER, "block", 512), PromptPiece(Speaker.USER, "rest", 88)]
    )
    assert speaker is Speaker.USER and num_words(text) == 596
    assert text.startswith(writer.text("block", 512))
