"""The words of a text, given to a classifier one after another. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from api.safety.classifiers.classifier import TextClassifier
from api.safety.verdict import LOW_FROM

WORDS_ASLEEP = 64
"""Words that a classifier is given of the text before it is woken, in number: Baton's own looks at 16. More takes
memory per text; fewer judges a doubt by less of the text.
"""
MOST_WORD_LENGTH = 64
"""Characters of a word that the classifier gets. More holds a text back for longer that has no blanks; fewer judges
long words by their beginnings.
"""


class ScoredWords(NamedTuple):
    """The window that ends with a word, if some score is not negligible."""

    label: int
    begin: int
    """The first character of its last word in the text."""
    end: int
    scores: Sequence[float]
    """In the order of the classifier's categories."""


class ClassifierScan:
    """The scores of one text. How it is cut into parts changes nothing. While it sleeps, it only remembers words."""

    def __init__(self, classifier: TextClassifier, is_awake: bool) -> None:
        self._classifier = classifier
        self._window = classifier.start() if is_awake else None
        self._asleep: deque[str] = deque(maxlen=WORDS_ASLEEP)
        """The last words before it is woken."""
        self._word: list[str] = []
        self._begin = 0
        self._end = 0
        self._is_long = False
        """Whether the word has been judged by its beginning."""
        self._due: Sequence[float] = ()
        """Scores of the words before it was woken, if no word has been judged since."""

    @property
    def open_from(self) -> int | None:
        """Where the word begins that is not judged yet; None if there is none."""
        return self._begin if self._word else None

    def wake(self) -> None:
        """Begin to judge: the stages before are in doubt."""
        if self._window is None:
            self._window = self._classifier.start()
            for word in self._asleep:
                self._due = self._window.add(word)
            self._asleep.clear()

    def step(self, character: str, begin: int, end: int) -> Sequence[ScoredWords]:
        """The scores that are known with the next character, which the text has from `begin` to `end`."""
        if not character.isalnum():
            self._is_long = False
            return self._judged() if self._word else ()
        if self._is_long:
            return ()
        if not self._word:
            self._begin = begin
        self._word.append(character)
        self._end = end
        if len(self._word) == MOST_WORD_LENGTH:
            self._is_long = True
            return self._judged()
        return ()

    def finish(self) -> Sequence[ScoredWords]:
        return self._judged() if self._word else self._scored(self._due)

    def _judged(self) -> Sequence[ScoredWords]:
        word = "".join(self._word)
        self._word.clear()
        if self._window is None:
            self._asleep.append(word)
            return ()
        self._due = ()
        return self._scored(self._window.add(word))

    def _scored(self, scores: Sequence[float]) -> Sequence[ScoredWords]:
        is_found = max(scores, default=0.0) >= LOW_FROM
        return (ScoredWords(0, self._begin, self._end, scores),) if is_found else ()
