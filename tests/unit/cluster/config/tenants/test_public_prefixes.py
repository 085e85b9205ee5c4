"""The config section `public_prefixes:`."""

from typing import Any

import pytest

from cluster.config.application import parse
from cluster.config.tenants.public_prefixes import MAX_PREFIXES, PublicPrefixConfig


def prefixes(given: Any) -> dict[str, PublicPrefixConfig]:
    return parse({"model": "m", "public_prefixes": given}).public_prefixes


def test_there_is_none_by_default() -> None:
    assert parse({"model": "m"}).public_prefixes == {}


def test_prefix_has_a_text_or_a_file() -> None:
    given = {"support": {"text": "You help."}, "handbook": {"file": "conf/handbook.txt"}}
    assert prefixes(given) == {
        "support": PublicPrefixConfig(text="You help."),
        "handbook": PublicPrefixConfig(file="conf/handbook.txt"),
    }


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"support": {}}, "either `text` or `file`"),
        ({"support": {"text": "a", "file": "b"}}, "either `text` or `file`"),
        ({"support": {"words": "a"}}, "words"),
        ({"support": "You help."}, "object"),
        ([{"text": "a"}], "object"),
        ({f"p{number}": {"text": "a"} for number in range(MAX_PREFIXES + 1)}, f"{MAX_PREFIXES}"),
    ],
    ids=["nothing", "both", "another key", "no section", "a list", "too many"],
)
def test_error_names_the_place(given: Any, why: str) -> None:
    with pytest.raises(ValueError) as refused:
        prefixes(given)
    assert why in str(refused.value) and "public_prefixes" in str(refused.value)
