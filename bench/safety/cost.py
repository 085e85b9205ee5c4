"""What the screening costs: each stage in CPU time, what clients see of it, and how often ordinary chats meet it.

    make bench-safety

The first table is CPU time by stage: of ordinary answers that come token by token, and of ordinary prompts. The second
one is TTFT and the gaps between the frames of streams whose tokens come at a steady pace: without the screening, with
it, and with a guard that answers after a fixed time. The last figure is the share of the chats that the demo model was
trained with in which a stage finds anything at all.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from api.safety.answer_screen import WINDOW_LENGTH
from api.safety.scans.rules import TextRole
from bench.goals.safety_cost import missed
from bench.goals.verdict import conclude
from bench.safety.examples import read_examples
from bench.safety.paced_streams import GUARD_S, OFF, PACE_S, PacedEngines, Round, client_times, pace_of
from bench.safety.slow_guard import clears
from bench.safety.stage_cost import STAGES, Screened, request_cost, stage_costs
from cluster.repository import REPO_ROOT

CHATS = 2000
"""Documents of the demo model's training that are screened."""
PROMPTS = {60: 20, 1000: 4}
"""How many prompts are read, by their number of words."""
EXAMPLES_PER_ANSWER = 60
"""Texts that an answer of a stream is cut from. Fewer are too short; more repeat sooner."""


def demo_chats() -> list[str]:
    command = f"import corpus, json; print(json.dumps(corpus.sample_text('safety', {CHATS})))"
    folder = REPO_ROOT / "conf" / "models" / "recipe"
    made = subprocess.run([sys.executable, "-c", command], cwd=folder, check=True, capture_output=True, text=True)
    return list(json.loads(made.stdout))


def touched(screened: Screened) -> dict[str, float]:
    """The share of the demo model's chats by what the standard policy does about their messages."""
    policy = screened.data.policies["standard"].policy
    counts = {"blocked": 0, "in doubt": 0, "masked": 0}
    for text in demo_chats():
        judge = screened.whole(policy, TextRole.ANSWER, [text]).judge
        counts["blocked"] += bool(judge.blocked)
        counts["in doubt"] += bool(judge.doubts)
        counts["masked"] += bool(judge.masked)
    return {name: count / CHATS for name, count in counts.items()}


def cost_table(screened: Screened, engines: PacedEngines, harmless: Sequence[str]) -> dict[str, dict[str, float]]:
    """Microseconds by what is read, and by stage."""
    decode = engines.tokenizer.decode
    answers = [[decode([token]) for token in engines.tokenizer.encode(text).ids] for text in harmless[:200]]
    whole = stage_costs(screened, TextRole.ANSWER, answers)
    num_tokens, num_characters = sum(map(len, answers)), sum(len(token) for answer in answers for token in answer)
    table = {
        "token": {name: us / num_tokens for name, us in whole.items()},
        "window": {name: us / num_characters * WINDOW_LENGTH for name, us in whole.items()},
    }
    for num_words, number in PROMPTS.items():
        words = " ".join(harmless).split()
        prompts = [" ".join(words[at : at + num_words]) for at in range(0, number * num_words, num_words)]
        of_prompts = stage_costs(screened, TextRole.USER, [[prompt] for prompt in prompts])
        request = request_cost(engines.tokenizer, prompts)
        column = {name: us / number for name, us in of_prompts.items()}
        table[f"{num_words} words"] = column | {"request": request.new, "again": request.again}
    return table


def print_costs(table: dict[str, dict[str, float]]) -> None:
    print(f"CPU time in us: per token and {WINDOW_LENGTH} characters of an answer, and per prompt")
    print(f"  {'':14}" + "".join(f"{name:>12}" for name in table))
    for row in (*STAGES, "request", "again"):
        cells = (f"{column[row]:12.1f}" if row in column else " " * 12 for column in table.values())
        print(f"  {row:14}" + "".join(cells))


def rounds_of(
    screened: Screened, engines: PacedEngines, harmless: Sequence[str], streams: int, rounds: int
) -> list[Round]:
    """One more than asked for: the first one warms up. No prompt comes twice."""
    joined = (" ".join(_around(harmless, at * EXAMPLES_PER_ANSWER)) for at in range(len(harmless)))
    answers = (answer for answer in map(engines.answer, joined) if clears(answer) and screened.passes(answer))
    prompts = (text for text in reversed(harmless) if clears(text) and screened.passes(text))
    return [
        Round([next(prompts) for _ in range(streams)], [next(answers) for _ in range(streams)])
        for _ in range(rounds + 1)
    ]


def _around(texts: Sequence[str], begin: int) -> list[str]:
    return [texts[(begin + number) % len(texts)] for number in range(EXAMPLES_PER_ANSWER)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16, help="streams at a time (default: 16)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each side (default: 4)")
    asked = parser.parse_args()
    screened, engines = Screened(), PacedEngines()
    harmless = [example.text for example in read_examples() if example.is_harmless]
    table = cost_table(screened, engines, harmless)
    print_costs(table)
    rounds = rounds_of(screened, engines, harmless, asked.streams, asked.rounds)
    with tempfile.TemporaryDirectory() as folder:
        times = asyncio.run(client_times(Path(folder), engines, rounds))
    pace = pace_of(engines, rounds[1:], times[OFF].gap)
    print(
        f"\n{asked.streams} streams at a time, a token every {1e3 * PACE_S:.0f} ms, a word every {pace.word_ms:.0f} ms,"
        f" a window every {pace.window_ms:.0f} ms; the guard answers after {1e3 * GUARD_S:.0f} ms"
    )
    names = ("TTFT p50", "p99", "gap p50", "p99", "longest p50", "p99", "calls")
    widths = (9, 8, 9, 8, 13, 8, 7)
    print(f"  {'guard':10} " + " ".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True)))
    for side, values in times.items():
        print(f"  {side:10} " + " ".join(f"{v:{width}.1f}" for v, width in zip(values, widths, strict=True)))
    print(f"  in ms. Longest: gap of an answer. Calls: per request, whose answer has {pace.num_windows:.2f} windows")
    shares = touched(screened)
    print(
        f"\nof {CHATS} chats of the demo model: " + ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    )
    conclude(missed(table, times, shares, pace))


if __name__ == "__main__":
    main()
