"""Word lists as data, and all of them as one automaton for terms and one for each pattern. Pure."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from api.safety.scans.normalise import canonical
from api.safety.scans.patterns import Pattern, PatternSet
from api.safety.scans.spellings import DisguisedTerms
from api.safety.scans.trie import MOST_TERM_LENGTH, Term, Trie
from api.safety.verdict import Category


class TextRole(StrEnum):
    """Whose text is screened."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    """An earlier answer, as the client sends it."""
    TOOL = "tool"
    """What a tool has returned."""
    DOCUMENT = "document"
    """What was retrieved."""
    ANSWER = "answer"
    """What the model generates."""


INJECTED = frozenset({TextRole.TOOL, TextRole.DOCUMENT})
"""The texts in which orders to the model are an injection. From a user, they are a wish."""


def counted(role: TextRole, scores: Mapping[Category, float]) -> Mapping[Category, float]:
    """The scores that count in such a text."""
    if role in INJECTED or Category.PROMPT_INJECTION not in scores:
        return scores
    return {category: score for category, score in scores.items() if category is not Category.PROMPT_INJECTION}


class RuleEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Terms and patterns that say the same of a text."""

    score: Annotated[float, Meta(ge=0, le=1)]
    """How likely a text with one of them is of the category. From 0.8 on, the tightest and the loosest thresholds block
    it; from 0.2 on it leaves doubt, so that later stages look. Of a topic: how much it speaks for the topic.
    """
    terms: list[str] = []
    """Words and phrases, whole."""
    stems: list[str] = []
    """What words begin with."""
    patterns: list[str] = []
    """Regular expressions, of a text in lower case without accents."""


class WordList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of conf/safety/lists/."""

    category: Category
    entries: list[RuleEntry]
    roles: list[TextRole] = []
    """The texts that the list is for; empty for all."""


class TopicList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of conf/safety/topics/: what answers are about that get a disclaimer."""

    disclaimer: Annotated[str, Meta(min_length=1, max_length=1000)]
    """What such an answer ends with."""
    entries: list[RuleEntry]
    """Their scores add up, each counted once (TOPIC_FROM in api/safety/judge.py)."""


class TopicRule(NamedTuple):
    """What a hit of a topic says."""

    topic: str
    score: float
    is_disclaimer: bool = False
    """Whether the hit is the disclaimer itself."""


class Rule(NamedTuple):
    """What a hit of a list says."""

    category: Category
    score: float
    roles: frozenset[TextRole]

    def is_for(self, role: TextRole) -> bool:
        return not self.roles or role in self.roles


class Rules:
    """All lists and topics of a deployment. Labels of hits are places in `rules`."""

    def __init__(self, lists: Iterable[WordList], topics: Mapping[str, TopicList] | None = None) -> None:
        """Raises ValueError: a term is empty or too long, or a pattern is not supported."""
        self.rules: list[Rule | TopicRule] = []
        self._patterns: list[Pattern] = []
        terms: list[Term] = []
        for one in lists:
            for entry in one.entries:
                terms += self._terms(entry, Rule(one.category, entry.score, frozenset(one.roles)))
        of_topics: list[Term] = []
        self.disclaimers: dict[str, str] = {}
        """By topic."""
        for topic, about in (topics or {}).items():
            self.disclaimers[topic] = about.disclaimer
            for entry in about.entries:
                of_topics += self._terms(entry, TopicRule(topic, entry.score))
            of_topics.append(self._disclaimer(topic, about.disclaimer))
        self.patterns = PatternSet(self._patterns)
        self.trie = Trie([*terms, *of_topics])
        self.disguised = DisguisedTerms(terms)

    def _disclaimer(self, topic: str, text: str) -> Term:
        """A text has the disclaimer that has its beginning. Raises ValueError."""
        begins = canonical(text).strip()[:MOST_TERM_LENGTH]
        if not any(character.isalnum() for character in begins):
            raise ValueError(f"topic {topic}: the disclaimer has no letters")
        self.rules.append(TopicRule(topic, 0.0, is_disclaimer=True))
        return Term(begins, len(self.rules) - 1, is_stem=True)

    def _terms(self, entry: RuleEntry, rule: Rule | TopicRule) -> list[Term]:
        """Add an entry whose hits say `rule`. Returns its terms."""
        label = len(self.rules)
        self.rules.append(rule)
        self._patterns += [Pattern(expression, label) for expression in entry.patterns]
        words = [Term(canonical(text).strip(), label) for text in entry.terms]
        return words + [Term(canonical(text).strip(), label, is_stem=True) for text in entry.stems]
