"""What everything that is not an engine core costs: CPU time per token and per request, time to the first token, gaps.

Compares Baton with vLLM's AsyncLLM driven in one process (`bare`), with `vllm serve`, and with vllm-router before two
`vllm serve`, all with the same engines and the demo model, side by side on this machine. docs/benchmarks.md says how
to read the tables.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import yaml

from bench.fronts import census
from bench.fronts.child import FailedStart
from bench.fronts.measure import Plan, measure
from bench.fronts.pace import write_pace
from bench.fronts.prompts import Prompts
from bench.fronts.report import figures, tables, to_json
from bench.fronts.setting import REPO_ROOT, Setting
from bench.fronts.systems import LOAD_GENERATOR, SYSTEMS, System, started_load_generator
from bench.goals.overhead import missed
from bench.goals.verdict import conclude

MODES = ("saturation", "paced")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    arguments = _arguments()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    plan = Plan(
        paces_s={mode: arguments.pace_ms / 1e3 if mode == "paced" else 0.0 for mode in arguments.modes},
        streams=arguments.streams,
        rounds=arguments.rounds,
        tokens=arguments.tokens,
        least_requests=arguments.requests,
        least_answers=arguments.answers,
        idle_s=arguments.idle_seconds,
    )
    try:
        run(plan, arguments)
    except (FailedStart, RuntimeError) as error:
        sys.exit(f"bench: {error}")


def run(plan: Plan, arguments: argparse.Namespace) -> None:
    setting = Setting(REPO_ROOT / ".baton" / "bench", yaml.safe_load(arguments.conf.read_text()))
    (setting.folder / "logs").mkdir(parents=True, exist_ok=True)
    write_pace(setting.pace_file, 0.0)
    began_at = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began_at:4.0f} s] {line}", flush=True)

    with ExitStack() as stack:
        systems: list[System] = []
        stack.callback(stop, systems)
        generator = started_load_generator(setting)
        for name in arguments.systems:
            systems.append(system := SYSTEMS[name](setting, generator))
            say(f"starting {name}")
            system.start()
        cells = figures(measure(plan, systems, Prompts(setting.model, arguments.prompt_tokens), setting.pace_file, say))
        say("stopping")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(to_json(machine(), plan, cells), indent=1))
    print(f"\n{machine()}\n\n{tables(plan, cells, by_process=arguments.by_process)}")
    conclude(missed(plan.paces_s, cells))


def stop(systems: list[System]) -> None:
    """All that has been started, whatever has become of it."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    for system in systems:
        system.interrupt()
    for system in systems:
        system.stop()
    census.kill(LOAD_GENERATOR)


def machine() -> str:
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{models[0] if models else 'unknown CPU'}, {os.cpu_count()} cores"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="(all)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="(both)")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="open at a time (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="of a long answer (%(default)s)")
    parser.add_argument("--requests", type=int, default=16, help="one-token requests per run, at least (%(default)s)")
    parser.add_argument("--answers", type=int, default=2, help="long answers per run, at least (%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=500, help="(%(default)s)")
    parser.add_argument("--pace-ms", type=float, default=30.0, help="least time of a paced engine step (%(default)s)")
    parser.add_argument("--idle-seconds", type=float, default=5.0, help="window per mode and round (%(default)s)")
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf" / "local.yaml", help="Baton's Serve config")
    parser.add_argument("--by-process", action="store_true", help="also where the CPU time goes")
    parser.add_argument("--json", type=Path, default=Path("bench/results/overhead.json"), help="(%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
