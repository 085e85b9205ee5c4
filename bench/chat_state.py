"""What it costs that turns are remembered, on real engines and a real PostgreSQL: the TTFT that it adds, the CPU time
of a turn, and what is gained where a conversation outgrows the model's window.

    make bench-chat-state

Starts `baton serve` with a small window and no titles, or measures the service at URL=. docs/benchmarks.md says how to
read the tables.
"""

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import openai
import yaml

from bench.fronts.child import FailedStart
from bench.fronts.cost import percentile
from bench.goals.chat_state import missed
from bench.goals.verdict import conclude
from bench.overhead import STOP_SIGNALS, machine
from bench.turns import added_ttft, long_conversation, turn_cost
from bench.turns.dialogs import Told
from bench.turns.service import Service, Used, found, started
from cluster.repository import REPO_ROOT
from cluster.simulation.results.summary import aligned

Say = Callable[[str], None]
Rows = list[tuple[str, ...]]


class Plan(NamedTuple):
    pairs: int
    """The least number of pairs of turns whose TTFT is measured."""
    cost: turn_cost.Plan
    turns: int
    """Turns of the long conversation."""


class Results(NamedTuple):
    added: list[added_ttft.Added]
    cost: turn_cost.TurnCost
    long: dict[str, list[Told]]
    used: dict[str, Used]
    """CPU time by part of the service."""


FULL = Plan(pairs=240, cost=turn_cost.Plan(rounds=3, streams=16, turns=10, idle_s=5.0), turns=100)
QUICK = Plan(pairs=12, cost=turn_cost.Plan(rounds=1, streams=4, turns=2, idle_s=1.0), turns=8)
STREAMS = (1, 8)
STRANGERS_TOLERANCE = 0.1
"""Share of a core that other processes may take before a run counts as disturbed. Higher hides disturbances."""


def main() -> None:
    arguments = _arguments()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    began_at = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began_at:4.0f} s] {line}", flush=True)

    plan, load = QUICK if arguments.quick else FULL, os.getloadavg()
    try:
        with _service(arguments, say) as service:
            window, results = asyncio.run(measure(service, plan, say))
            say("stopping")
    except (FailedStart, RuntimeError, openai.OpenAIError) as error:
        sys.exit(f"bench: {error}")
    title = (
        f"{machine()}; a window of {window} tokens; load before and after {load[0]:.1f} and {os.getloadavg()[0]:.1f}"
    )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"machine": title, "plan": plan._asdict(), **_to_json(results)}, indent=1))
    print(f"\n{title}\n\n{tables(results)}")
    costs = {kind: results.cost.cost(kind) for kind in results.cost.runs}
    summaries = {name: long_conversation.summary(told) for name, told in results.long.items()}
    conclude(missed(results.added, costs, summaries))


def _service(arguments: argparse.Namespace, say: Say) -> AbstractContextManager[Service]:
    if arguments.url:
        return nullcontext(found(arguments.url))
    say("starting baton")
    conf = yaml.safe_load(arguments.conf.read_text())
    conf["applications"][0]["args"]["engine"]["max_model_len"] = arguments.window
    return started(conf)


async def measure(service: Service, plan: Plan, say: Say) -> tuple[int, Results]:
    """And the model's window."""
    client, used = service.client(), {}
    (card, *_) = (await client.models.list()).data
    model, window = card.id, card.model_dump()["max_model_len"]
    say("warming up")
    await added_ttft.added_ttft(client, model, max(STREAMS), max(STREAMS), lambda _: None)
    gc.collect()
    gc.freeze()
    added = []
    for streams in STREAMS:
        with service.watched() as used[f"TTFT, {streams} at once"]:
            added.append(await added_ttft.added_ttft(client, model, streams, plan.pairs, say))
    with service.watched() as used["cost"]:
        cost = await turn_cost.turn_cost(service, client, model, plan.cost, say)
    with service.watched() as used["long conversation"]:
        told = await long_conversation.long_conversation(client, model, window, plan.turns, say)
    await client.close()
    return window, Results(added, cost, told, used)


def tables(results: Results) -> str:
    blocks = [aligned(_ttft_rows(results)), aligned(_cost_rows(results)), aligned(_long_rows(results))]
    disturbed = [
        f"  {part}: other processes took {100 * used.strangers_share:.0f} % of a core"
        for part, used in results.used.items()
        if used.strangers_share is not None and used.strangers_share > STRANGERS_TOLERANCE
    ]
    return "\n\n".join([*blocks, "\n".join(["Disturbed", *disturbed])] if disturbed else blocks)


def _ttft_rows(results: Results) -> Rows:
    rows: Rows = [("TTFT ms", "pairs", "stored p50", "p90", "stateless p50", "p90", "added", "95 %")]
    for added in results.added:
        figures = [f"{1e3 * percentile(arm, p):.1f}" for arm in (added.stored_s, added.stateless_s) for p in (50, 90)]
        value, low, high = (1e3 * seconds for seconds in asdict(added.difference).values())
        pairs = str(len(added.stored_s))
        rows.append((f"{added.streams} at once", pairs, *figures, f"{value:+.1f}", f"{low:+.1f} to {high:+.1f}"))
    return rows


def _cost_rows(results: Results) -> Rows:
    rows: Rows = [("turns", "ingress ms/turn", "(by round)", "turns/s and core", "PostgreSQL ms/turn", "turns/s")]
    for kind in results.cost.runs:
        cost = results.cost.cost(kind)
        ingress, postgres = ("-", "-", "-"), "-"
        if cost.ingress_ms is not None:
            by_round = f"({min(cost.ingress_ms_by_run):.1f}-{max(cost.ingress_ms_by_run):.1f})"
            ingress = (f"{cost.ingress_ms:.1f}", by_round, f"{1e3 / cost.ingress_ms:.0f}")
        if cost.postgres_ms is not None:
            postgres = f"{cost.postgres_ms:.1f}"
        rows.append((kind, *ingress, postgres, f"{cost.turns_per_s:.1f}"))
    return rows


def _long_rows(results: Results) -> Rows:
    rows: Rows = [("long conversation", "prompt", "computed", "cached", "moved", "known", "TTFT p50", "p90 ms")]
    for name, told in results.long.items():
        of = long_conversation.summary(told)
        tokens = (f"{of.prompt_tokens:,.0f}", f"{of.computed_tokens:,.0f}", f"{of.cached_share:.0%}", str(of.moved))
        rows.append((name, *tokens, f"{of.known:.0%}", f"{1e3 * of.ttft_p50_s:.0f}", f"{1e3 * of.ttft_p90_s:.0f}"))
    return rows


def _to_json(results: Results) -> dict[str, Any]:
    return {
        "added_ttft": [asdict(added) for added in results.added],
        "cost": {kind: asdict(results.cost.cost(kind)) for kind in results.cost.runs},
        "cost_runs": asdict(results.cost),
        "long": {name: asdict(long_conversation.summary(told)) for name, told in results.long.items()},
        "long_turns": {name: [turn._asdict() for turn in told] for name, told in results.long.items()},
        "used": {part: asdict(used) for part, used in results.used.items()},
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a service that runs already; the CPU time of its processes on this machine")
    parser.add_argument("--quick", action="store_true", help="a few turns of each: to see that it works")
    parser.add_argument("--window", type=int, default=2048, help="tokens, of the model that is started (%(default)s)")
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf" / "local.yaml", help="Serve config")
    parser.add_argument("--json", type=Path, default=Path("bench/results/chat-state.json"), help="(%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
