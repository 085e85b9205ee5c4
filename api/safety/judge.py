"""What a policy does about what the scans of one text have found. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from api.safety.classifiers.classifier import TextClassifier
from api.safety.continued_text import ContinuedText
from api.safety.policy import NEVER_OFF, OnPersonalData, Policy, Runs, SafetyStage
from api.safety.scans.classified_words import ClassifierScan, ScoredWords
from api.safety.scans.disguise import DisguiseScan
from api.safety.scans.normalise import canonical
from api.safety.scans.patterns import PatternScan, PatternSet
from api.safety.scans.personal_data import KINDS, patterns_of, spans_in
from api.safety.scans.rules import Rules, TextRole, TopicRule, counted
from api.safety.scans.screened_text import Cut, Found, Mask, Scan, ScreenedText
from api.safety.scans.words import WordScan
from api.safety.verdict import Category, highest

MOST_TERMS = 20
"""Terms of lists that are noted of a text, in number. More takes more memory for texts that are full of them; fewer
shows a reviewer less of why a text was refused.
"""
TOPIC_FROM = 1.0
"""The sum of the scores of a topic's entries, each counted once, from which on a text is about it. Higher needs more
kinds of hints; lower adds disclaimers to answers that mention the topic in passing.
"""
TOPIC_SPAN = 300
"""Characters within which the hints lie, some two sentences. More takes long answers for advice that mention this and
that; fewer misses advice whose hints are further apart.
"""
_PERSONAL = {kind.name: pattern for kind, pattern in zip(KINDS, patterns_of(KINDS), strict=True)}
"""Their labels are the places of the kinds."""
_SETS: dict[tuple[str, ...], PatternSet] = {}
"""The kinds that some policy looks for."""


def _patterns_of(kinds: tuple[str, ...]) -> PatternSet:
    if kinds not in _SETS:
        _SETS[kinds] = PatternSet([_PERSONAL[kind] for kind in kinds])
    return _SETS[kinds]


class Judged(NamedTuple):
    """A text, and how it is judged."""

    text: ScreenedText | ContinuedText
    judge: "PolicyJudge"


class TopicHint(NamedTuple):
    score: float
    at: int
    """Where it ends in the text."""
    text: str


class PolicyJudge:
    """The findings of one text, and what they come to."""

    def __init__(self, policy: Policy, shadow: Policy | None, role: TextRole) -> None:
        """`shadow`: a policy that is tried out. What it would block is kept, and nothing is done about it."""
        self._policy = policy
        self._shadow = shadow
        self._role = role
        on = policy.personal_data_out if role is TextRole.ANSWER else policy.personal_data_in
        self._on_personal_data = {str(kind): what for kind, what in on.items()}
        self._ways: list[Callable[[Found, str], Sequence[Cut | Mask]]] = []
        self._wake: Callable[[], None] | None = None
        self._allowed: frozenset[str] | None = None
        """The terms that lists do not find, in canonical form, once one of a list is found."""
        self.scores: dict[SafetyStage, dict[Category, float]] = {}
        """The highest scores that each stage has found."""
        self.masked: Counter[str] = Counter()
        """Personal data that is masked, by kind."""
        self.blocked: set[Category] = set()
        self.would_block: set[Category] = set()
        """What the shadow blocks and the policy does not."""
        self.doubts: deque[int] = deque()
        """The ends of what leaves doubt, in order. Whoever has cleared a doubt may remove it."""
        self.terms: list[str] = []
        """What lists have found, as the text has it."""
        self.topics: list[str] = []
        """The topics that the text is about, in the order in which they came up, and whose disclaimer it has not."""
        self._hints: dict[str, dict[int, TopicHint]] = {}
        """The last hint of each entry of a topic."""
        self._disclaimed: set[str] = set()
        """Topics whose disclaimer the text has already."""

    def __call__(self, number: int, found: Found, text: str) -> Sequence[Cut | Mask]:
        return self._ways[number](found, text)

    def scans(self, rules: Rules, classifier: TextClassifier | None) -> list[Scan]:
        """Fresh scans, all that the policy wants of the text."""
        scans: list[Scan] = []
        self._ways = []
        if self._policy.stage(SafetyStage.LISTS).runs is not Runs.NEVER:
            scans += [WordScan(rules.trie), DisguiseScan(rules.disguised), PatternScan(rules.patterns)]
            self._ways += [lambda found, text: self._on_rule(rules, found, text)] * 3
        kinds = self._kinds()
        if kinds and self._policy.stage(SafetyStage.PERSONAL_DATA).runs is not Runs.NEVER:
            scans.append(PatternScan(_patterns_of(kinds)))
            self._ways.append(self._on_data)
        runs = self._policy.stage(SafetyStage.CLASSIFIER).runs
        if classifier is not None and runs is not Runs.NEVER:
            scan = ClassifierScan(classifier, is_awake=runs is Runs.ALWAYS)
            self._wake = scan.wake
            scans.append(scan)
            self._ways.append(lambda found, _: self._on_words(classifier.categories, found))
        return scans

    def _kinds(self) -> tuple[str, ...]:
        """What personal data the policy looks for."""
        on = self._on_personal_data
        return tuple(kind.name for kind in KINDS if on.get(kind.name, OnPersonalData.ALLOW) is not OnPersonalData.ALLOW)

    def _on_rule(self, rules: Rules, found: Found, text: str) -> Sequence[Cut]:
        rule = rules.rules[found.label]
        if isinstance(rule, TopicRule):
            self._on_topic(rule, found, text)
            return ()
        if not rule.is_for(self._role) or (rule.category not in NEVER_OFF and self._is_allowed(text)):
            return ()
        if len(self.terms) < MOST_TERMS and text not in self.terms:
            self.terms.append(text)
        return self._cut(SafetyStage.LISTS, {rule.category: rule.score}, found)

    @property
    def hints(self) -> dict[str, list[str]]:
        """What speaks for each topic, as the text has it."""
        return {topic: [hint.text for hint in hints.values()] for topic, hints in self._hints.items()}

    def _on_topic(self, rule: TopicRule, found: Found, text: str) -> None:
        topic = rule.topic
        if rule.is_disclaimer:
            self._disclaimed.add(topic)
            if topic in self.topics:
                self.topics.remove(topic)
        if topic in self._disclaimed or topic in self.topics:
            return
        hints = self._hints.setdefault(topic, {})
        hints[found.label] = TopicHint(rule.score, found.end, text)
        if sum(hint.score for hint in hints.values() if hint.at >= found.end - TOPIC_SPAN) >= TOPIC_FROM:
            self.topics.append(topic)

    def _is_allowed(self, term: str) -> bool:
        if not self._policy.allowed:
            return False
        if self._allowed is None:
            self._allowed = frozenset(canonical(allowed).strip() for allowed in self._policy.allowed)
        return canonical(term).strip() in self._allowed

    def _on_words(self, categories: Sequence[Category], found: Found) -> Sequence[Cut]:
        assert isinstance(found, ScoredWords)
        return self._cut(SafetyStage.CLASSIFIER, dict(zip(categories, found.scores, strict=True)), found)

    def _on_data(self, found: Found, text: str) -> Sequence[Cut | Mask]:
        kind = KINDS[found.label]
        spans = [span for span in spans_in(kind, text) if found.begin + span[1] > 0]  # the others lie in a prompt
        if not spans:
            return ()
        self._note(SafetyStage.PERSONAL_DATA, {Category.PERSONAL_DATA: 1.0})
        if self._on_personal_data[kind.name] is OnPersonalData.BLOCK:
            self.blocked.add(Category.PERSONAL_DATA)
            return [Cut(found.begin + spans[0][0])]
        self.masked[kind.name] += len(spans)
        return [Mask(found.begin + begin, found.begin + end, kind.mask) for begin, end in spans]

    def _cut(self, stage: SafetyStage, scores: Mapping[Category, float], found: Found) -> Sequence[Cut]:
        scores = counted(self._role, scores)
        self._note(stage, scores)
        blocked = self._policy.blocked(scores)
        if self._shadow is not None:
            self.would_block.update(set(self._shadow.blocked(scores)).difference(blocked))
        if blocked:
            self.blocked.update(blocked)
            return [Cut(found.begin)]
        if self._policy.is_in_doubt(scores):
            if not self.doubts or found.end > self.doubts[-1]:
                self.doubts.append(found.end)
            if self._wake is not None:
                self._wake()
        return ()

    def _note(self, stage: SafetyStage, scores: Mapping[Category, float]) -> None:
        self.scores[stage] = highest([self.scores.get(stage, {}), scores])


def judged_text(
    policy: Policy,
    shadow: Policy | None,
    role: TextRole,
    rules: Rules,
    classifier: TextClassifier | None,
    context: str = "",
) -> Judged:
    """A text that is screened from its beginning on. `context`: what it continues."""
    judge = PolicyJudge(policy, shadow, role)
    across = judge.scans(rules, None) if context else []
    text = ScreenedText(judge.scans(rules, classifier), judge)
    return Judged(ContinuedText(text, across, judge, context) if context else text, judge)
