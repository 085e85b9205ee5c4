"""Agents beside chats on real engines with equal KV memory: Baton with and without retention, against `vllm serve`
behind a choice of the server with the fewest open requests, and behind one that keeps a conversation's server.

    make bench-agents

Each system has two engines with vLLM's own eviction (LRU), but for Baton's retention. A step of an engine lasts
`--pace-ms`, and `--token-us` for each token that it computes, as on an accelerator; what is left of that time is slept,
so that a small machine can run two engines. One system runs at a time. It begins with what a warm-up of other tasks has
left in its caches, such as the instructions of the agents. In each round all are asked the same. `good` is the share of
requests that meet the SLO which Baton has; the others know of none.
"""

import argparse
import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from bench.fronts import census
from bench.fronts.child import Driver, FailedStart
from bench.fronts.pace import write_pace
from bench.fronts.setting import REPO_ROOT, Setting
from bench.fronts.systems import LOAD_GENERATOR, System, wait
from bench.live.contenders import Colocated, EngineRules, EqualBaton, adapted
from bench.overhead import STOP_SIGNALS, machine
from bench.retention.agent_figures import (
    DIFFERENCES,
    HEADING,
    TASKS,
    AgentLoad,
    Asked,
    Objective,
    cores,
    differences,
    rows,
    tasks_row,
)
from cluster.simulation.results.summary import aligned

FEWEST, SAME, BATON, RETENTION = "fewest requests", "same server", "baton", "baton, retention"
NAMES = (FEWEST, SAME, BATON, RETENTION)
NUM_WORKERS = 2
KEPT_SHARE = 0.5
WARM_S = 15.0
"""Arrivals before those that are measured: for paths, and for what Baton learns of its engines."""
MODEL_TOKENS = 8192
"""Longest prompt that the model can take, with its answer."""
SLO = {"ttft_s": 1.0, "ttft_per_prefill": 3.0, "tpot_s": 0.1}
"""What Baton is to meet. The servers of vLLM have no objectives."""
SERVER_OPTIONS = {"enable_prompt_tokens_details": True, "enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
"""What `vllm serve` needs to tell its hits, and to call tools as Baton does."""


@dataclass(frozen=True)
class Contender:
    name: str
    make: Callable[[Driver], System]
    is_sticky: bool = False
    """Whether the choice among its servers keeps conversations where they were."""


def contenders(conf: dict[str, Any], setting: Setting, step_tokens: int | None) -> list[Contender]:
    """`conf`: that of `setting`, of Baton without retention. `step_tokens`: most tokens of a step of the others; None
    for as many as Baton's.
    """
    keeping = replace(setting, conf=_keeping(conf))
    rules = EngineRules(step_tokens or setting.engine["max_num_batched_tokens"])

    def servers(driver: Driver) -> System:
        return Colocated(setting, driver, NUM_WORKERS, rules, SERVER_OPTIONS)

    return [
        Contender(FEWEST, servers),
        Contender(SAME, servers, is_sticky=True),
        Contender(BATON, lambda driver: EqualBaton(setting, driver)),
        Contender(RETENTION, lambda driver: EqualBaton(keeping, driver)),
    ]


def run(arguments: argparse.Namespace) -> None:
    conf = adapted(yaml.safe_load(arguments.conf.read_text()), NUM_WORKERS)
    args = conf["applications"][0]["args"]
    args["slo"]["standard"] = SLO
    args["engine"] |= {"kv_cache_memory_bytes": arguments.kv << 10, "max_model_len": MODEL_TOKENS}
    setting = Setting(REPO_ROOT / ".baton" / "bench", conf, is_thin=True)
    (setting.folder / "logs").mkdir(parents=True, exist_ok=True)
    write_pace(setting.pace_file, arguments.pace_ms / 1e3, arguments.token_us / 1e6)
    compared = [each for each in contenders(conf, setting, arguments.step_tokens) if each.name in arguments.systems]
    objective = Objective(SLO["ttft_s"], SLO["ttft_per_prefill"] * arguments.token_us / 1e6, SLO["tpot_s"])
    runs: dict[str, list[list[Asked]]] = defaultdict(list)
    began_at = time.monotonic()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    for number in range(arguments.rounds):
        for contender in compared if number % 2 == 0 else reversed(compared):
            print(f"[{time.monotonic() - began_at:4.0f} s] round {number + 1}, {contender.name}", flush=True)
            runs[contender.name].append(asked := _measured(contender, setting, _load(arguments, number)))
            print(aligned([HEADING, *rows(contender.name, [asked], objective)]), flush=True)
        told = {name: [list(map(asdict, each)) for each in some] for name, some in runs.items()}
        arguments.json.write_text(json.dumps({"machine": machine(), "runs": told}))
    table = [row for name, some in runs.items() for row in rows(name, some, objective)]
    print(f"\n{machine()}\n\n{aligned([HEADING, *table])}")
    print(f"\n{aligned([TASKS, *(tasks_row(name, some, objective) for name, some in runs.items())])}")
    print(f"\n{aligned([DIFFERENCES, *differences(runs)])}")


def _measured(contender: Contender, setting: Setting, load: AgentLoad) -> list[Asked]:
    """One round of one system, from its start to its stop."""
    with ExitStack() as stack:
        stack.callback(census.kill, LOAD_GENERATOR)
        environment = setting.environment(LOAD_GENERATOR, LOAD_GENERATOR)
        log = setting.log(LOAD_GENERATOR, "process")
        driver = Driver("bench.retention.agent_load", [setting.model], environment, log, cwd=setting.folder)
        wait(driver, driver.is_ready)
        system = contender.make(driver)
        stack.callback(system.stop)
        stack.callback(system.interrupt)
        system.start()
        ports = tuple(getattr(system, "ports", [system.port]))
        load = replace(load, ports=ports, is_sticky=contender.is_sticky)
        caller: Any = driver
        caller.prepare(replace(load, seed=-1, duration_s=WARM_S))
        caller.run()
        caller.prepare(load)
        before = census.read()
        lasted_s = caller.run()
        used = census.used_by_process(before, census.read())
        print(f"  cores in use: {cores(used, (system.name, LOAD_GENERATOR), lasted_s)}", flush=True)
        asked: list[Asked] = caller.collect()
        return asked


def _load(arguments: argparse.Namespace, number: int) -> AgentLoad:
    return AgentLoad(
        ports=(),
        is_sticky=False,
        tasks_per_s=arguments.tasks,
        chats_per_s=arguments.chats,
        duration_s=arguments.seconds,
        gap_s=arguments.gap,
        most_gap_s=10.0,
        num_steps=10,
        instruction_words=arguments.words,
        question_words=arguments.words // 2,
        result_words=arguments.words // 4,
        chat_words=arguments.words // 2,
        chat_output_tokens=24,
        seed=number,
    )


def _keeping(conf: Mapping[str, Any]) -> dict[str, Any]:
    application = conf["applications"][0]
    args = application["args"]
    pools = {pool: {**args[pool], "kept_share": KEPT_SHARE} for pool in ("prefill", "decode")}
    return {**conf, "applications": [{**application, "args": {**args, **pools}}]}


def main() -> None:
    arguments = _arguments()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: sys.exit("stopped"))
    try:
        run(arguments)
    except (FailedStart, RuntimeError) as error:
        sys.exit(f"bench: {error}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=NAMES, default=NAMES, help="(all)")
    parser.add_argument("--rounds", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals in a round (%(default)s)")
    parser.add_argument("--kv", type=int, default=12_000, help="KV memory of each engine, in KiB (%(default)s)")
    parser.add_argument("--tasks", type=float, default=0.5, help="tasks of ten steps that begin in a second (0.5)")
    parser.add_argument("--chats", type=float, default=1.0, help="chats that begin in a second (%(default)s)")
    parser.add_argument("--words", type=int, default=500, help="of the instructions, each of 2 tokens (%(default)s)")
    parser.add_argument("--gap", type=float, help="mean time of a tool in seconds, instead of the published times")
    parser.add_argument("--step-tokens", type=int, help="most tokens of a step of the servers of vLLM (as Baton's)")
    parser.add_argument("--pace-ms", type=float, default=10.0, help="time of an engine step (%(default)s)")
    parser.add_argument(
        "--token-us", type=float, default=300.0, help="and of each token that it computes (%(default)s)"
    )
    parser.add_argument("--conf", type=Path, default=REPO_ROOT / "conf" / "local.yaml", help="Baton's Serve config")
    parser.add_argument("--json", type=Path, default=Path("bench/results/agents.json"), help="(%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
