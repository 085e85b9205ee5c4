import pytest

from api.quality.probe_set import OWN_PROMPTS, ProbeSet, Reference, fingerprint, parsed, written
from tests.unit.api.quality.answers import an_answer


def test_file_is_read_as_it_was_written() -> None:
    reference = Reference(fingerprint="f", model="m", learned_at=1.0, answers={"water": an_answer(1, 2)})
    probes = ProbeSet(prompts=OWN_PROMPTS, reference=reference)
    assert parsed(written(probes)) == probes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[]", "Expected `object`"),
        (b'{"prompts": []}', "length >= 1"),
        (b'{"prompts": [{"name": "a"}]}', "either text or messages"),
        (b'{"prompts": [{"name": "a", "text": "x"}, {"name": "a", "text": "y"}]}', "same name"),
        (b'{"prompts": [{"name": "a", "text": "x", "temperature": 1}]}', "unknown field"),
        (b'{"prompts": [{"name": "a/b", "text": "x"}]}', "matching regex"),
        (b" " * (9 << 20), "at most 8 MiB"),
    ],
)
def test_file_that_is_no_probe_set_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parsed(text)


def test_fingerprint_changes_with_all_that_an_answer_depends_on() -> None:
    prompts = {"a": [1, 2], "b": [3]}
    same = fingerprint("m", dict(reversed(prompts.items())), 16)
    assert same == fingerprint("m", prompts, 16)
    others = [
        fingerprint("n", prompts, 16),
        fingerprint("m", prompts, 17),
        fingerprint("m", {"a": [1, 2], "b": [4]}, 16),
    ]
    assert same not in others


def test_own_prompts_have_names_of_their_own() -> None:
    assert len({prompt.name for prompt in OWN_PROMPTS}) == len(OWN_PROMPTS) >= 2
