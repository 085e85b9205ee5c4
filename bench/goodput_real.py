"""Goodput of real engines on this machine: Baton against two colocated vLLM servers with least-loaded routing, fixed
P->D on Baton's own engines, and vllm-router in P/D mode. Chats, long prompts, and both at once, in an open loop.

docs/benchmarks.md says how to read the tables. After each round they are written anew, so a run that is stopped leaves
what it has.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import yaml

from bench.fronts.child import FailedStart
from bench.fronts.pace import write_pace
from bench.fronts.setting import REPO_ROOT, Setting
from bench.goals.goodput_real import missed
from bench.goals.verdict import conclude
from bench.live.contenders import Contender, Stage, adapted, contenders, started_generator
from bench.live.mixes import LONG_SHARES
from bench.live.report import Report
from bench.live.rounds import Measurement, Plan
from bench.overhead import STOP_SIGNALS, machine, stop

QUICK_ROUNDS, QUICK_ROUND_S = 1, 10.0


def main() -> None:
    arguments = _arguments()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    plan = Plan(
        mixes=arguments.mixes,
        load=arguments.load,
        rounds=QUICK_ROUNDS if arguments.quick else arguments.rounds,
        round_s=QUICK_ROUND_S if arguments.quick else arguments.round_seconds,
        ttft_factor=arguments.ttft_factor,
        base_s=arguments.base_ms / 1e3,
        tpot_factor=arguments.tpot_factor,
        seed=arguments.seed,
    )
    try:
        run(plan, arguments)
    except (FailedStart, RuntimeError) as error:
        sys.exit(f"bench: {error}")


def run(plan: Plan, arguments: argparse.Namespace) -> None:
    setting = Setting(REPO_ROOT / ".baton" / "bench", adapted(yaml.safe_load(arguments.conf.read_text())))
    (setting.folder / "logs").mkdir(parents=True, exist_ok=True)
    write_pace(setting.pace_file, arguments.pace_ms / 1e3)
    began_at = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began_at:4.0f} s] {line}", flush=True)

    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        compared = contenders(setting, started_generator(setting))
        stage = _started(compared, stack, say)
        for results in Measurement(plan, compared, stage, setting.model, say).rounds():
            report = Report(plan, results)
            arguments.json.write_text(json.dumps(report.to_json(machine()), indent=1))
            arguments.json.with_suffix(".md").write_text(f"{machine()}\n\n{report.markdown()}\n")
        say("stopping")
    print(f"\n{machine()}\n\n{report.text()}")
    conclude(missed(report.verdicts))


def _started(compared: list[Contender], stack: ExitStack, say: Callable[[str], None]) -> Stage:
    systems = list(dict.fromkeys(contender.system for contender in compared))
    stage = Stage(systems)
    stack.callback(stop, systems)
    stack.callback(stage.leave)
    for system in systems:
        say(f"starting {system.name}")
        system.start()
    return stage


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round of each: to see that it works")
    parser.add_argument("--mixes", nargs="+", choices=LONG_SHARES, default=list(LONG_SHARES), help="(all)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--round-seconds", type=float, default=20.0, help="of arrivals (%(default)s)")
    parser.add_argument(
        "--load", type=float, default=0.6, help="share of what two colocated servers can do (%(default)s)"
    )
    parser.add_argument("--ttft-factor", type=float, default=5.0, help="TTFT SLO: times the TTFT alone (%(default)s)")
    parser.add_argument("--base-ms", type=float, default=100.0, help="and so much more (%(default)s)")
    parser.add_argument("--tpot-factor", type=float, default=3.0, help="TPOT SLO: times the TPOT alone (%(default)s)")
    parser.add_argument("--pace-ms", type=float, default=0.0, help="least time of an engine step (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf" / "local.yaml", help="Baton's Serve config")
    parser.add_argument("--json", type=Path, default=Path("bench/results/goodput-real.json"), help="(%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
