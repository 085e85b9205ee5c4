"""The example texts, and what each of them tells about each category."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from api.safety.classifiers.features import MOST_LETTERS
from api.safety.scans.normalise import canonical
from api.safety.verdict import Category
from bench.matrix.cells import REPO_ROOT

FOLDER = REPO_ROOT / "conf" / "safety" / "examples"
BENIGN, TECHNICAL, HARD_NEGATIVES = "benign", "technical", "hard-negatives"
"""Files with texts that are of no category at all. The technical ones are from manuals and licences, as an assistant
reads them, and the hard ones have words that remind of a category.
"""
HARMLESS = (BENIGN, TECHNICAL, HARD_NEGATIVES)
PARENTS: Mapping[Category, Category] = {
    Category.HARASSMENT_THREATENING: Category.HARASSMENT,
    Category.HATE_THREATENING: Category.HATE,
    Category.ILLICIT_VIOLENT: Category.ILLICIT,
    Category.SELF_HARM_INTENT: Category.SELF_HARM,
    Category.SELF_HARM_INSTRUCTIONS: Category.SELF_HARM,
    Category.VIOLENCE_GRAPHIC: Category.VIOLENCE,
}
"""What is of a category is of its parent, too."""
_OVERLAPS = (
    (Category.HARASSMENT, Category.HATE),
    (Category.HARASSMENT, Category.HATE_THREATENING),
    (Category.HARASSMENT, Category.SELF_HARM),
    (Category.HARASSMENT, Category.SEXUAL),
    (Category.HARASSMENT_THREATENING, Category.HATE),
    (Category.HARASSMENT_THREATENING, Category.HATE_THREATENING),
    (Category.HARASSMENT_THREATENING, Category.ILLICIT_VIOLENT),
    (Category.HARASSMENT_THREATENING, Category.SELF_HARM),
    (Category.HARASSMENT_THREATENING, Category.VIOLENCE),
    (Category.HARASSMENT_THREATENING, Category.VIOLENCE_GRAPHIC),
    (Category.HATE_THREATENING, Category.ILLICIT_VIOLENT),
    (Category.HATE_THREATENING, Category.VIOLENCE),
    (Category.HATE_THREATENING, Category.VIOLENCE_GRAPHIC),
    (Category.ILLICIT, Category.PROMPT_INJECTION),
    (Category.ILLICIT, Category.SELF_HARM_INSTRUCTIONS),
    (Category.ILLICIT_VIOLENT, Category.SELF_HARM_INSTRUCTIONS),
    (Category.ILLICIT_VIOLENT, Category.VIOLENCE),
    (Category.ILLICIT_VIOLENT, Category.VIOLENCE_GRAPHIC),
    (Category.SELF_HARM, Category.VIOLENCE),
    (Category.SELF_HARM, Category.VIOLENCE_GRAPHIC),
)
OVERLAPS = frozenset(_OVERLAPS) | {(second, first) for first, second in _OVERLAPS}
"""Categories of two families that one text may well be of. An example of one says nothing about the other."""


@dataclass(frozen=True)
class Example:
    file: str
    """The file's name without its ending."""
    is_positive: bool
    """Whether it is of the file's category."""
    text: str

    @cached_property
    def words(self) -> tuple[str, ...]:
        """As the classifier sees them."""
        return words_of(self.text)

    @property
    def is_harmless(self) -> bool:
        return self.file in HARMLESS

    @property
    def category(self) -> Category | None:
        """The category of the file."""
        return _BY_FILE.get(self.file)


_BY_FILE = {category.replace("/", "-"): category for category in Category}


def words_of(text: str) -> tuple[str, ...]:
    """Runs of letters and digits of the canonical text."""
    words = "".join(c if c.isalnum() else " " for c in canonical(text)).split()
    return tuple(word[:MOST_LETTERS] for word in words)


def read_examples(folder: Path = FOLDER) -> list[Example]:
    """In the order of the files' names and lines. Raises ValueError: a file or a line is not what it should be."""
    examples: list[Example] = []
    for path in sorted(folder.glob("*.tsv")):
        if path.stem not in _BY_FILE and path.stem not in HARMLESS:
            raise ValueError(f"{path}: no category has this name")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            label, tab, text = line.partition("\t")
            example = Example(path.stem, label == "1", text)
            if label not in ("0", "1") or not tab or not example.words:
                raise ValueError(f"{path}:{number}: a line is 0 or 1, a tab and a text")
            if example.is_positive and path.stem not in _BY_FILE:
                raise ValueError(f"{path}:{number}: no text here is of a category")
            examples.append(example)
    return examples


def categories_of(examples: Sequence[Example]) -> tuple[Category, ...]:
    """Those that there are examples of, in the order of Category."""
    found = {example.category for example in examples if example.is_positive}
    return tuple(category for category in Category if category in found)


def label(example: Example, category: Category) -> bool | None:
    """Whether the example is of the category; None if it does not say."""
    own = example.category
    if own is None:
        return False
    if own is category or PARENTS.get(own) is category:
        if example.is_positive:
            return True
        return False if own is category else None
    if _family(own) is _family(category):
        is_child = PARENTS.get(category) is own
        return False if is_child and not example.is_positive else None
    return None if example.is_positive and (own, category) in OVERLAPS else False


def _family(category: Category) -> Category:
    return PARENTS.get(category, category)
