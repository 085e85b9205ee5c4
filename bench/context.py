"""How much of a long conversation's prompts is a prefix of what the turn before has left in the KV cache.

    make bench-context

One conversation of 100 turns in a window that holds some of them, with the demo model's tokenizer and template and no
engine. Baton's plan (api/context/plan.py), with and without summaries, against what truncation mostly is: drop the
oldest turn until the rest fits. Counted in whole KV blocks, against the prompt and the answer of the turn before.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from transformers import AutoTokenizer

from api.context.plan import Budget, Measured, SummaryPlace, budget_of, plan, to_summarize
from api.context.prompt_notes import SEAM_TOKENS, composed, text_of, user_message
from api.context.turn_boundaries import Item, is_asked, turn_starts
from api.wire.responses.as_chat import chat_messages
from bench.goals.context import PerTurn, missed
from bench.goals.verdict import conclude
from cluster.config.context import ContextConfig
from cluster.repository import REPO_ROOT

MODEL = REPO_ROOT / "conf" / "models" / "baton-demo"
BLOCK = 16
NAIVE, SUMMARIZING = "drop the oldest", "planned, with summaries"
INSTRUCTIONS = "Answer briefly. Say so where you do not know. " * 8
WORDS = ["the", "code", "of", "Tosk", "is", "nine", "and", "Mela", "four", "while", "rain", "falls", "on", "Paris"]

TOKENIZER = AutoTokenizer.from_pretrained(MODEL)
TOKENIZER.model_max_length = sys.maxsize  # what is too long is counted, too


class Sent(NamedTuple):
    """One turn's prompt."""

    tokens: int
    cached: int
    known: float
    """Share of the conversation that it holds, or has a summary of."""


class Chosen(NamedTuple):
    cut: int
    covered: int
    """Items that `summary` stands for."""
    summary: str | None


class Planned:
    def __init__(self, *, summarizes: bool) -> None:
        self._summarizes = summarizes
        self._summaries: list[SummaryPlace] = []
        self._texts: dict[int, str] = {}
        """The text of each summary, by the number of items that it covers."""
        self._chance = random.Random(1)
        self.read = 0
        """Tokens that the summaries were written from."""

    def choose(self, items: list[Item], budget: Budget) -> Chosen:
        chosen = plan(self._measured(items), budget)
        covered = chosen.summary.covers if chosen.summary else 0
        return Chosen(chosen.cut, covered, self._texts.get(covered))

    def after(self, items: list[Item], budget: Budget) -> None:
        measured = self._measured(items)
        covers = to_summarize(measured, plan(measured, budget).cut, budget) if self._summarizes else None
        if covers is not None:
            covered = max(self._texts, default=0)
            self.read += sum(measured.tokens[covered:covers]) + num_tokens(self._texts.get(covered, ""))
            self._texts[covers] = text(self._chance, budget.summary // 2)
            self._summaries.append(SummaryPlace(covers, len(items)))

    def _measured(self, items: list[Item]) -> Measured:
        tokens = [around_message() + num_tokens(text_of(item)) for item in items]
        return Measured(tokens, [is_asked(item) for item in items], turn_starts(items), self._summaries)


class DropOldest:
    read = 0

    def __init__(self) -> None:
        self._cut = 0

    def choose(self, items: list[Item], budget: Budget) -> Chosen:
        left = [start for start in turn_starts(items) if start >= self._cut]
        self._cut = next(start for start in left if len(prompt_of(items[start:])) <= budget.limit)
        return Chosen(self._cut, 0, None)

    def after(self, items: list[Item], budget: Budget) -> None:
        """Keeps nothing."""


@cache
def num_tokens(said: str) -> int:
    return len(TOKENIZER(said, add_special_tokens=False)["input_ids"])


@cache
def around_message() -> int:
    """Of a turn's messages, in the template; api/context/token_counter.py measures it with words in them."""
    return len(prompt_of([user_message(""), said_by_model("")])) - len(prompt_of([user_message("")])) + SEAM_TOKENS


def said_by_model(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def prompt_of(items: Sequence[Item]) -> list[int]:
    messages = chat_messages(items, INSTRUCTIONS)
    rendered = TOKENIZER.apply_chat_template(texts(messages), tokenize=False, add_generation_prompt=True)
    return list(TOKENIZER(rendered, add_special_tokens=False)["input_ids"])


def texts(messages: list[Item]) -> list[Item]:
    """With contents as vLLM gives them to a template of plain texts."""
    return [
        message
        if isinstance(message["content"], str)
        else message | {"content": "\n".join(part["text"] for part in message["content"])}
        for message in messages
    ]


def text(chance: random.Random, num_words: int) -> str:
    return " ".join(chance.choices(WORDS, k=num_words))


def talk(policy: Planned | DropOldest, arguments: argparse.Namespace) -> list[Sent]:
    chance = random.Random(0)
    system = len(prompt_of([user_message("")]))
    budget = budget_of(ContextConfig(), arguments.window, None, system)
    items: list[Item] = []
    left: list[int] = []
    sent: list[Sent] = []
    for _ in range(arguments.turns):
        items.append(user_message(text(chance, chance.randint(10, 2 * arguments.words))))
        chosen = policy.choose(items, budget)
        prompt = prompt_of(composed(items, chosen.cut, chosen.summary))
        assert len(prompt) <= budget.limit
        same = next((at for at, (one, other) in enumerate(zip(prompt, left, strict=False)) if one != other), None)
        cached = (min(len(prompt), len(left)) if same is None else same) // BLOCK * BLOCK
        known = 1 - (chosen.cut - chosen.covered) / len(items)
        sent.append(Sent(len(prompt), cached, known))
        answer = text(chance, chance.randint(10, 2 * arguments.words))
        items.append(said_by_model(answer))
        left = [*prompt, *TOKENIZER(answer, add_special_tokens=False)["input_ids"]]
        policy.after(items, budget)
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=8192, metavar="TOKENS", help="of the model (%(default)s)")
    parser.add_argument("--turns", type=int, default=100, metavar="N", help="(%(default)s)")
    parser.add_argument("--words", type=int, default=80, metavar="N", help="of a message, in the mean (%(default)s)")
    arguments = parser.parse_args()
    policies: dict[str, Planned | DropOldest] = {
        NAIVE: DropOldest(),
        "planned": Planned(summarizes=False),
        SUMMARIZING: Planned(summarizes=True),
    }
    print(f"{arguments.turns} turns in a window of {arguments.window} tokens, blocks of {BLOCK}\n")
    print(f"{'':24}{'sent':>8}{'computed':>10}{'summaries':>11}{'cached':>8}{'moved':>7}{'known':>7}")
    means = {}
    for name, policy in policies.items():
        sent = talk(policy, arguments)
        tokens, cached = sum(turn.tokens for turn in sent), sum(turn.cached for turn in sent)
        moved = sum(turn.cached < turn.tokens // 2 for turn in sent[1:])
        known = sum(turn.known for turn in sent) / len(sent)
        mean = PerTurn((tokens - cached) / len(sent), policy.read / len(sent), moved, known)
        means[name] = mean
        per_turn = f"{tokens / len(sent):8,.0f}{mean.computed:10,.0f}{mean.read:11,.0f}"
        print(f"{name:24}{per_turn}{cached / tokens:8.1%}{moved:7d}{known:7.0%}")
    print("\nsent, computed: tokens of a prompt, and those of it that are not in the cache, a turn;")
    print("summaries: tokens a turn that they are written from, in the background;")
    print("moved: turns with less than half of their prompt in the cache;")
    print("known: share of the conversation that a prompt holds, or a summary in it stands for")
    conclude(missed(arguments.window, means[NAIVE], means[SUMMARIZING]))


if __name__ == "__main__":
    main()
