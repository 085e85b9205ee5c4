"""What a classifier is. It sees the words of a text one after another. A deployment may plug in its own. Pure."""

from collections.abc import Sequence
from typing import Protocol

from api.safety.verdict import Category


class ClassifierWindow(Protocol):
    """The last words of one text."""

    def add(self, word: str) -> Sequence[float]:
        """Scores from 0 to 1 of the window that ends with this word, in the order of `categories`. It is called on the
        event loop for each word, so it has to be quick: slower models belong behind a guard's endpoint. `word`: a
        maximal run of letters and digits of a canonical text.
        """
        ...


class TextClassifier(Protocol):
    version: str
    """A hash of the weights."""
    categories: Sequence[Category]

    def start(self) -> ClassifierWindow:
        """The window of a new text."""
        ...
