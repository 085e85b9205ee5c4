"""Prompts whose right answer is known without asking anybody: a list of names, again and again.

The demo model goes on with the list for thousands of tokens, with a margin of more than a nat at every token, so that
the numerics of another batch, another worker or a recomputed prompt change nothing. A token that is lost, repeated or
another request's shows, and so does a prompt that is another one in most of its KV blocks. A few wrong blocks do not:
the model reads the list elsewhere. They are what the check of each hand-over is for (kvtransfer/verify.py). (Prompts of
more than some 1,500 tokens are beyond the model: it then errs by itself.)
"""

import random
from dataclasses import dataclass
from itertools import cycle, islice

NUM_NAMES = 20
MEAN_TOKENS_PER_NAME = 1.2
NAMES = (
    "Anna Ben Carla David Emma Felix Greta Hugo Ida Jonas Karin Leo Maria Nina Oscar Paul Rosa Simon Tina Viktor "
    "Alice Bob Clara Daniel Eva Frank Grace Henry Iris Jack Kate Lucas Mia Noah Olivia Peter Ruth Sam Tom Walter "
    "Ahmed Bella Chen Diego Elena Fatima Goran Hana Ivan Julia Kofi Lena Marco Nadia Omar Priya Ravi Sofia Tariq Yuki"
).split()


@dataclass(frozen=True)
class Litany:
    prompt: str
    round: str

    def is_continued_by(self, text: str) -> bool:
        return text == "".join(islice(cycle(self.round), len(text)))


def litany(seed: int, num_tokens: int) -> Litany:
    """About `num_tokens` long. Another seed gives other names, so the two share no KV block."""
    names = random.Random(seed).sample(NAMES, NUM_NAMES)
    names_said_once = "".join(f" {name}" for name in names)
    num_rounds = max(2, round(num_tokens / (NUM_NAMES * MEAN_TOKENS_PER_NAME)))
    return Litany(prompt=names_said_once * num_rounds, round=names_said_once)
