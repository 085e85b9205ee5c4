"""Finds the words of word lists (words.txt) for the demo model, and an order of them that it can follow from every
start. A program, for whoever trains the demo model anew: half an hour.

    python -m tests.drills.find_words --minutes 15

A word is dropped where the model often errs at it in random orders. The rest is arranged: words at which the model errs
change places with others, as long as that helps. Whatever is not right then is dropped, until all is right.
"""

import argparse
import random
import re
import textwrap
import time
from collections import Counter
from collections.abc import Iterable

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.repository import REPO_ROOT
from tests.drills.word_lists import NUM_SAID_AGAIN, WORDS_FILE

MODEL = REPO_ROOT / "conf/models/baton-demo"
SURE_NATS, WANTED_NATS = 0.7, 1.5
"""How far the right word must be ahead of every other in the end, and while words are arranged."""
NUM_WORDS = 480
"""To arrange. More make longer prompts, and take longer: some do not get on with the others anywhere."""
SHORT = (57, 147)
"""Words of the shorter word lists that are tried, from every start."""
NUM_ORDERS, KEPT_SHARE = 40, 0.94
NUM_TRIES = 3
BATCH_TOKENS = 4800

Errors = Counter[int]
"""The model's errors in thousandths of a nat, by the index of the word."""


class Search:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self._tokens = {
            word.strip(): token
            for token, word in enumerate(tokenizer.batch_decode([[token] for token in range(len(tokenizer))]))
            if re.fullmatch(" [A-Za-z]{2,}", word) and tokenizer(word, add_special_tokens=False).input_ids == [token]
        }

    def choose(self) -> list[str]:
        """The words at which the model errs least, in any order."""
        words = sorted(self._tokens)
        while len(words) > NUM_WORDS:
            errors = Counter(dict.fromkeys(words, 0))
            for _ in range(NUM_ORDERS):
                self._rng.shuffle(words)
                for at, nats in self._errors(words, NUM_WORDS, [0], WANTED_NATS).items():
                    errors.update({words[at]: nats, words[at - 1]: nats})
            kept = max(NUM_WORDS, int(len(words) * KEPT_SHARE))
            words = [word for word, _ in errors.most_common()][-kept:]
            print(f"{len(words)} words", flush=True)  # noqa: T201
        return words

    def arrange(self, words: list[str], seconds: float) -> list[str]:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            windows = [(len(words), 3), (len(words) // 2, 3), (SHORT[1], 6), (SHORT[0], 8)]
            tried = [(length, self._rng.choices(range(len(words)), k=number)) for length, number in windows]
            errors = self._all_errors(words, tried, WANTED_NATS)
            for _ in range(NUM_TRIES if errors else 0):
                other = self._exchanged(words, errors)
                fewer = self._all_errors(other, tried, WANTED_NATS)
                if fewer.total() < errors.total():
                    words, errors = other, fewer
                    break
            print(f"{errors.total() / 1000:.1f} nats", flush=True)  # noqa: T201
        return words

    def purge(self, words: list[str]) -> list[str]:
        """Until the model is right from every start."""
        step = 5
        while True:
            tried = [(length, list(range(0, len(words), step))) for length in (*SHORT, len(words))]
            errors = self._all_errors(words, tried, SURE_NATS)
            print(f"{len(errors)} of {len(words)} words", flush=True)  # noqa: T201
            if not errors and step == 1:
                return words
            step = step if errors else 1
            worst = errors.most_common(len(errors) // 2 + 1)
            dropped = {(at - self._rng.randrange(2)) % len(words) for at, _ in worst}
            words = [word for at, word in enumerate(words) if at not in dropped]

    def _exchanged(self, words: list[str], errors: Errors) -> list[str]:
        """Some of the words at which the model errs, or those before them, with any others."""
        words = list(words)
        for at in self._rng.choices(list(errors), list(errors.values()), k=len(errors) // 4 + 1):
            one, other = at - self._rng.randrange(2), self._rng.randrange(len(words))
            words[one], words[other] = words[other], words[one]
        return words

    def _all_errors(self, words: list[str], tried: Iterable[tuple[int, list[int]]], nats: float) -> Errors:
        return sum((self._errors(words, length, starts, nats) for length, starts in tried), Errors())

    def _errors(self, words: list[str], length: int, starts: list[int], nats: float) -> Errors:
        """Errors in the first round after a list of `length` words from each of these starts."""
        errors = Errors()
        number = max(1, BATCH_TOKENS // (2 * length))
        for some in (starts[first : first + number] for first in range(0, len(starts), number)):
            tokens = torch.tensor([[self._tokens[word] for word in (words * 2)[at : at + length]] for at in some])
            right = tokens.roll(-NUM_SAID_AGAIN, 1)
            said = torch.cat([tokens, tokens[:, :NUM_SAID_AGAIN], right[:, :-1]], 1)
            with torch.no_grad():
                logits = self._model(said).logits[:, length + NUM_SAID_AGAIN - 1 :]
            others = logits.scatter(2, right[..., None], float("-inf")).amax(2)
            missing = nats - (logits.gather(2, right[..., None])[..., 0] - others)
            for row, column in (missing > 0).nonzero().tolist():
                at = (some[row] + (column + NUM_SAID_AGAIN) % length) % len(words)
                errors[at] += 1 + int(1000 * missing[row, column])
        return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15, help="to arrange the words")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    search = Search(arguments.seed)
    words = search.purge(search.arrange(search.choose(), 60 * arguments.minutes))
    WORDS_FILE.write_text("\n".join(textwrap.wrap(" ".join(words), 118)) + "\n")


if __name__ == "__main__":
    main()
