"""What examples say about categories, and which files are refused."""

from pathlib import Path

import pytest

from api.safety.verdict import Category
from bench.safety.examples import BENIGN, PARENTS, Example, categories_of, label, read_examples, words_of


def an_example(file: str, is_positive: bool = True) -> Example:
    return Example(file, is_positive, "some words")


def test_words_are_those_of_the_canonical_text() -> None:
    assert words_of("Don't STOP, café №5!") == ("don", "t", "stop", "cafe", "no5")


@pytest.mark.parametrize(
    ("file", "is_positive", "category", "expected"),
    [
        ("violence", True, Category.VIOLENCE, True),
        ("violence", False, Category.VIOLENCE, False),
        ("violence-graphic", True, Category.VIOLENCE, True),
        ("violence", True, Category.VIOLENCE_GRAPHIC, None),
        ("violence", False, Category.VIOLENCE_GRAPHIC, False),
        ("violence-graphic", False, Category.VIOLENCE, None),
        ("self-harm-intent", True, Category.SELF_HARM_INSTRUCTIONS, None),
        ("harassment-threatening", True, Category.VIOLENCE, None),
        ("harassment-threatening", False, Category.VIOLENCE, False),
        ("violence", True, Category.PROMPT_INJECTION, False),
        ("benign", False, Category.HATE, False),
        ("hard-negatives", False, Category.SEXUAL, False),
    ],
)
def test_example_says_what_it_can(file: str, is_positive: bool, category: Category, expected: bool | None) -> None:
    assert label(an_example(file, is_positive), category) is expected


@pytest.mark.parametrize(("child", "parent"), PARENTS.items())
def test_child_implies_its_parent(child: Category, parent: Category) -> None:
    assert label(an_example(child.replace("/", "-")), parent) is True


@pytest.mark.parametrize(
    ("name", "content"),
    [("violence", "2\ttext\n"), ("violence", "1 text\n"), ("violence", "1\t...\n"), (BENIGN, "1\ttext\n"), ("x", "")],
)
def test_faulty_file_is_refused_by_its_place(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / f"{name}.tsv").write_text(content)
    with pytest.raises(ValueError, match=f"{name}.tsv"):
        read_examples(tmp_path)


def test_committed_examples_are_of_all_categories_with_a_classifier() -> None:
    examples = read_examples()
    assert {*Category} - {*categories_of(examples)} == {Category.SEXUAL_MINORS, Category.PERSONAL_DATA}
    assert len({(example.file, example.words) for example in examples}) == len(examples)
