"""Goodput of real engines on this machine: Baton against colocated vLLM servers at their best step size and order
behind a prefix-aware, least-loaded router, fixed P->D on Baton's own engines, and vllm-router in P/D mode. Chats, long
prompts, and both at once, in an open loop.

docs/benchmarks.md says how to read the tables. After each round they are written anew, so a run that is stopped leaves
what it has.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import yaml

from bench.fronts import census
from bench.fronts.child import FailedStart
from bench.fronts.pace import write_pace
from bench.fronts.setting import REPO_ROOT, Setting
from bench.fronts.systems import LOAD_GENERATOR
from bench.goals.goodput_real import missed
from bench.goals.verdict import conclude
from bench.live.contenders import NUM_WORKERS, Contender, EngineRules, Stage, adapted, contenders, started_generator
from bench.live.memory import require_room
from bench.live.mixes import LONG_SHARES
from bench.live.report import Report
from bench.live.rounds import Measurement, Plan
from bench.live.tuning import STEP_TOKENS, Tried, best, in_order, rows, try_all
from bench.matrix.report import markdown
from bench.overhead import STOP_SIGNALS, machine, stop
from cluster.simulation.results.summary import aligned

QUICK_ROUNDS, QUICK_ROUND_S = 1, 10.0


def main() -> None:
    arguments = _arguments()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    plan = Plan(
        mixes=arguments.mixes,
        loads=loads(arguments.load, arguments.mixes),
        rounds=QUICK_ROUNDS if arguments.quick else arguments.rounds,
        round_s=QUICK_ROUND_S if arguments.quick else arguments.round_seconds,
        ttft_factor=arguments.ttft_factor,
        base_s=arguments.base_ms / 1e3,
        tpot_factor=arguments.tpot_factor,
        streams=arguments.streams,
        seed=arguments.seed,
    )
    try:
        run(plan, arguments)
    except (FailedStart, RuntimeError) as error:
        sys.exit(f"bench: {error}")


def run(plan: Plan, arguments: argparse.Namespace) -> None:
    conf = adapted(yaml.safe_load(arguments.conf.read_text()), arguments.workers)
    setting = Setting(REPO_ROOT / ".baton" / "bench", conf, arguments.thin)
    (setting.folder / "logs").mkdir(parents=True, exist_ok=True)
    write_pace(setting.pace_file, arguments.pace_ms / 1e3, arguments.token_us / 1e6)
    began_at = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began_at:4.0f} s] {line}", flush=True)

    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        stack.callback(census.kill, LOAD_GENERATOR)
        generator = started_generator(setting)
        candidates = step_sizes(arguments.vllm_step_tokens, setting.engine["max_num_batched_tokens"], arguments.quick)
        tried: list[Tried] = []
        if len(candidates) > 1 or not arguments.quick:
            tried = try_all(candidates, arguments.workers, plan, setting, generator, say)
        rules = best(tried).rules if tried else EngineRules(candidates[0])
        compared = contenders(setting, generator, arguments.workers, rules)
        stage = _started(compared, arguments.workers, stack, say)
        measurement = Measurement(plan, compared, stage, setting.model, say)
        for results in measurement.rounds(measurement.calibrated()):
            report = Report(plan, results)
            tuning = {"workers": arguments.workers, "vllm_rules": asdict(rules), "tried": list(map(asdict, tried))}
            arguments.json.write_text(json.dumps(report.to_json(machine()) | tuning, indent=1))
            tuned = f"\nTuning of the colocated servers\n\n{markdown(rows(tried))}" if tried else ""
            arguments.json.with_suffix(".md").write_text(f"{machine()}\n\n{report.markdown()}\n{tuned}")
        say("stopping")
    if tried:
        print(f"\nTuning of the colocated servers: attainment by mix\n\n{aligned(rows(tried))}")
    print(f"\n{machine()}\n\n{report.text()}")
    conclude(missed(report.verdicts))


def loads(asked: Sequence[float], mixes: Sequence[str]) -> dict[str, float]:
    """The share of each mix: one for all, or one for each."""
    if len(asked) not in (1, len(mixes)):
        sys.exit(f"bench: --load takes one share, or one for each of the {len(mixes)} mixes, not {len(asked)}")
    return dict(zip(mixes, [*asked] * len(mixes) if len(asked) == 1 else asked, strict=True))


def step_sizes(asked: Sequence[int] | None, configured: int, is_quick: bool) -> list[int]:
    """What the colocated servers are tried with. `configured`: what all other engines have."""
    if asked is None:
        asked = [configured] if is_quick else STEP_TOKENS
    return in_order(asked, configured)


def _started(compared: list[Contender], num_workers: int, stack: ExitStack, say: Callable[[str], None]) -> Stage:
    systems = list(dict.fromkeys(contender.system for contender in compared))
    stage = Stage(systems)
    stack.callback(stop, systems)
    stack.callback(stage.leave)
    for number, system in enumerate(systems):
        say(f"starting {system.name}")
        system.start()
        if number == 0:
            require_room(system, num_workers, num_workers * (len(systems) - 1))
    return stage


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it works")
    parser.add_argument("--mixes", nargs="+", choices=LONG_SHARES, default=list(LONG_SHARES), help="(all)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument(
        "--workers", type=int, choices=NUM_WORKERS, default=NUM_WORKERS[0], help="engines of each system (%(default)s)"
    )
    parser.add_argument(
        "--vllm-step-tokens",
        type=int,
        nargs="+",
        metavar="N",
        help=f"step sizes that the colocated servers are tried with ({' '.join(map(str, STEP_TOKENS))}; with --quick"
        " that of the config)",
    )
    parser.add_argument("--round-seconds", type=float, default=20.0, help="of arrivals (%(default)s)")
    parser.add_argument(
        "--load",
        type=float,
        nargs="+",
        default=[0.6],
        metavar="SHARE",
        help="of what the colocated servers do with so many streams: one for all mixes, or one for each (0.6)",
    )
    parser.add_argument("--ttft-factor", type=float, default=5.0, help="TTFT SLO: times the TTFT alone (%(default)s)")
    parser.add_argument("--base-ms", type=float, default=100.0, help="and so much more (%(default)s)")
    parser.add_argument("--tpot-factor", type=float, default=3.0, help="TPOT SLO: times the TPOT alone (%(default)s)")
    parser.add_argument(
        "--streams", type=int, default=16, help="open at a time where what they can do is measured (%(default)s)"
    )
    parser.add_argument("--pace-ms", type=float, default=0.0, help="least time of an engine step (%(default)s)")
    parser.add_argument("--token-us", type=float, default=0.0, help="and of each token that it computes (%(default)s)")
    parser.add_argument(
        "--thin", action="store_true", help="one layer of the model, with random weights: most of a paced step is slept"
    )
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf" / "local.yaml", help="Baton's Serve config")
    parser.add_argument("--json", type=Path, default=Path("bench/results/goodput-real.json"), help="(%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
