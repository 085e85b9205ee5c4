"""`baton plan`: the pools, the cost and the bottleneck of a load, computed from the roofline model and simulated."""

import argparse
import json
import re
import sys
import textwrap
import time
from pathlib import Path

import msgspec

from cluster.messages.ids import SloClass
from cluster.planning.alike_requests import alike_requests
from cluster.planning.capacity_plan import TENSOR_PARALLEL, CapacityPlan, Offer, best_plan, link_of
from cluster.planning.cell_check import search_cell
from cluster.planning.costs import ASSUMED_PRICES
from cluster.planning.demand import Demand, demand_of
from cluster.planning.model_shapes import named_shape, shape_of_config
from cluster.planning.plan_text import checked, derivation, plan_table
from cluster.planning.simulated_cell import LEAST_REQUESTS, SimulatedCell, cell_of, num_requests_of
from cluster.planning.sizing import Priced, Sizing
from cluster.simulation.experiment import Cluster, Experiment, parse_link
from cluster.simulation.results.summary import RunSummary
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import OBJECTIVES, parse_slos
from cluster.simulation.traffic.traces import read_trace, repeated
from cluster.simulation.traffic.workload import Arrival
from cluster.slo import SloConfig
from router.prediction.hardware import DEVICES, LINKS, MODELS, longest_part
from router.prediction.roofline import ModelShape

LONGEST_PROMPT = 10_000_000
"""Most prompt or answer tokens that --prompt and --answer take on average. Higher accepts what no model can read; lower
refuses long contexts.
"""
LEAST_RATE, MOST_RATE = 1e-3, 1e9
"""Requests per second that --rate takes. Wider bounds accept loads that nobody has; narrower ones refuse small tests.
"""
UNLIKELY_TPOT = 10.0
"""TPOT from which an objective is taken to be in milliseconds, in seconds. Higher plans such mistakes; lower refuses
objectives of batches.
"""
LEAST_MEMORY = 0.9
"""Share of a known device's memory from which a named one is the same device. Higher refuses devices whose names round
their memory; lower plans one of 40 GB as one of 80.
"""
WIDTH = 110
"""Columns of the sentences below the table. Wider breaks in narrow terminals; narrower takes more lines."""
_EPILOG = f"""\
models: {", ".join(MODELS)}, each also with -fp8; a hub name with one of them in it; or a folder
        with a config.json
GPUs:   {", ".join(DEVICES)}; or the driver's name, as in "NVIDIA H100 80GB HBM3"
        prices known: {", ".join(f"{name} ${price:g}" for name, price in ASSUMED_PRICES.items())} (list prices of one
        provider on 26 August 2026; --price gives yours)
SLOs:   {", ".join(SloClass)}; {", ".join(OBJECTIVES)}; or TTFT/TPOT or TTFT+Nx/TPOT in seconds, as for `baton simulate`
mixes:  {", ".join(MIXES)}
links:  GB/s of one GPU's network card, or {", ".join(LINKS)}

examples:
  baton plan --model llama-3-70b --gpu h100 --rate 1000 --slo 1+3x/0.05 --prompt 1500 --answer 300
  baton plan --model qwen3-32b --gpu h200 --rate 40 --slo interactive --mix chat --target 0.99
  baton plan --model /models/Qwen3-8B --gpu a100 --rate 10 --trace conversation.jsonl.gz --no-simulation --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Computes how many prefill and decode workers a load needs to meet its SLO, from the roofline "
        "model, and checks the result with a small simulated cell. Starts no process and needs no GPU."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", required=True, help="name of a model, or folder with a config.json")
    parser.add_argument("--gpu", type=str.lower, required=True, help="device")
    parser.add_argument("--tp", type=int, metavar="N", help="devices per worker (default: what takes fewest devices)")
    parser.add_argument("--rate", type=float, required=True, metavar="R", help="requests per second, at the peak")
    parser.add_argument("--slo", default="standard", help="SLO of the requests (default: %(default)s)")
    parser.add_argument(
        "--target", type=float, default=0.9, help="share of requests that must meet their SLO (default: %(default)s)"
    )
    traffic = parser.add_argument_group("traffic", "Either lengths, or a mix, or a trace.")
    traffic.add_argument("--prompt", type=float, metavar="N", help="mean tokens of a prompt")
    traffic.add_argument("--answer", type=float, metavar="N", help="mean tokens of an answer")
    traffic.add_argument(
        "--hit", type=float, metavar="SHARE", help="share of the prompt tokens that caches hold (default: 0)"
    )
    traffic.add_argument("--mix", choices=MIXES, metavar="NAME", help="mix of the simulator")
    traffic.add_argument("--trace", type=Path, metavar="FILE", help="Mooncake JSON lines or Azure CSV")
    traffic.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)")
    parser.add_argument("--link", default="400g", help="network card of a device (default: %(default)s)")
    parser.add_argument("--price", type=float, metavar="USD", help="price of a device per hour (default: see below)")
    parser.add_argument("--no-simulation", action="store_true", help="compute only")
    parser.add_argument(
        "--cpu-seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="CPU time after which the simulation stops with what it has found (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        _check(arguments)
        planner = _Planner(arguments)
        plan = planner.plan()
    except (OSError, ValueError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    computed = planner.priced.sizing(plan.pools, arguments.target)
    try:
        cell = None if arguments.no_simulation else planner.simulate(plan)
    except KeyboardInterrupt:
        print("\nbaton: stopped", file=sys.stderr)
        return 130
    except ValueError as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    simulated = None
    if cell is not None:
        pools = cell.pools(arguments.rate, plan.pools.tensor_parallel)
        simulated = planner.priced.sizing(pools, cell.run.attainment, cell.run.token_attainment)
    elif not arguments.no_simulation:
        print("baton: no simulated run attained the target in time; --cpu-seconds gives more", file=sys.stderr)
    if arguments.json:
        print(json.dumps(_document(planner, plan, computed, cell, simulated), indent=2))
        return 0
    print(f"{planner.heading(plan)}\n\n{plan_table(computed, simulated)}\n")
    sentences = derivation(plan, planner.demand)
    if cell is not None and simulated is not None:
        sentences += checked(cell, computed, simulated, arguments.target, plan)
    print("\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in sentences))
    return 0


class _Planner:
    """The options of the command line, as the model, the demand and the offer of a plan."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._model, shape = _model(arguments.model)
        self._device = _device(arguments.gpu)
        self._slos, self._link = _slos(arguments.slo), parse_link(arguments.link)
        defaults = Cluster()
        self._offer = Offer(
            model=shape,
            hardware=DEVICES[self._device],
            link=self._link,
            step_tokens=defaults.prefill_step_tokens,
            max_decoding=defaults.max_decoding,
        )
        self._trace = read_trace(arguments.trace, seed=arguments.seed) if arguments.trace else None
        self.demand: Demand = demand_of(self._trace or self._rows(LEAST_REQUESTS), self._slos)
        self.priced = Priced(
            demand=self.demand,
            rate_per_s=arguments.rate,
            kv_bytes_per_token=shape.kv_bytes_per_token,
            price=arguments.price or ASSUMED_PRICES.get(self._device),
        )

    def plan(self) -> CapacityPlan:
        sizes = TENSOR_PARALLEL if self._arguments.tp is None else (self._arguments.tp,)
        return best_plan(self.demand, self._arguments.rate, self._arguments.target, self._offer, sizes)

    def simulate(self, plan: CapacityPlan) -> SimulatedCell | None:
        """Simulate the cell of a plan, and show progress on standard error."""
        arguments = self._arguments
        num_prefill, num_decode = cell_of(plan.pools)
        cluster = Cluster(
            model=self._model,
            shape=self._offer.model,
            device=self._device,
            tensor_parallel=plan.pools.tensor_parallel,
            num_workers=num_prefill + num_decode,
            link=link_of(self._link, plan.pools.tensor_parallel),
        )
        experiment = Experiment(self._rows(num_requests_of(plan, self.demand)), cluster, self._slos)
        began_s = time.process_time()

        def show(rate: float, run: RunSummary | None) -> None:
            result = "too fast"
            if run:
                result = (
                    f"{100 * run.attainment:.1f} % within SLO, with {100 * run.token_attainment:.1f} % of the tokens"
                )
            spent_s = time.process_time() - began_s
            print(f"{num_prefill}P{num_decode}D at {rate:.2f} req/s: {result} ({spent_s:.1f} s)", file=sys.stderr)

        def is_out_of_time() -> bool:
            return time.process_time() - began_s > arguments.cpu_seconds

        return search_cell(experiment, plan, arguments.target, is_out_of_time, show)

    def heading(self, plan: CapacityPlan) -> str:
        demand, arguments = self.demand, self._arguments
        price = f"${self.priced.price:g} per GPU and hour" if self.priced.price else "no price known: give --price"
        return (
            f"{self._model} on workers of {plan.pools.tensor_parallel} {self._device} ({price}).\n"
            f"{arguments.rate:,g} requests/s of {demand.prompt:.0f} prompt tokens, of which caches hold "
            f"{100 * demand.hit_share:.1f} %, and {demand.output:.0f} answer tokens. "
            f"{100 * arguments.target:g} % are to meet their SLO."
        )

    def _rows(self, number: int) -> list[Arrival]:
        arguments = self._arguments
        if self._trace is not None:
            return repeated(self._trace, number)
        if arguments.mix:
            return generate(MIXES[arguments.mix], number, arguments.seed)
        hit = arguments.hit or 0.0
        return alike_requests(arguments.rate, arguments.prompt, arguments.answer, hit, number, arguments.seed)


def _check(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that name nothing, or that do not go together."""
    if not LEAST_RATE <= arguments.rate <= MOST_RATE:
        raise ValueError(f"--rate {arguments.rate:g}: give requests per second, from {LEAST_RATE:g} to {MOST_RATE:g}")
    lengths = (arguments.prompt, arguments.answer)
    given = [arguments.mix is not None, arguments.trace is not None, lengths != (None, None)]
    if sum(given) != 1:
        raise ValueError("give the traffic as --prompt and --answer, or as --mix, or as --trace")
    if given[2] and not all(length is not None and 1 <= length <= LONGEST_PROMPT for length in lengths):
        raise ValueError(f"--prompt and --answer: give both, each from 1 to {LONGEST_PROMPT} tokens")
    if arguments.hit is not None and not (given[2] and 0 <= arguments.hit < 1):
        raise ValueError("--hit goes with --prompt, and is at least 0 and less than 1: mixes and traces have their own")
    if arguments.tp is not None and not 1 <= arguments.tp <= max(TENSOR_PARALLEL):
        raise ValueError(f"--tp {arguments.tp}: a worker has 1 to {max(TENSOR_PARALLEL)} devices, those of one node")
    if not all(value is None or 0 < value < MOST_RATE for value in (arguments.price, arguments.cpu_seconds)):
        raise ValueError(f"--price and --cpu-seconds must be more than 0, and less than {MOST_RATE:g}")


def _model(text: str) -> tuple[str, ModelShape]:
    """The name of a model and its shape."""
    folder = Path(text).expanduser()
    if not folder.is_dir() and not text.startswith(("/", ".", "~")):
        return named_shape(text)
    try:
        config = msgspec.json.decode((folder / "config.json").read_bytes())
        return folder.resolve().name, shape_of_config(config)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder}: {error}") from error


def _device(text: str) -> str:
    """The name of a device in DEVICES, from that name or from the driver's.

    Raises:
        ValueError: there is no such device, or it is a variant with other figures.
    """
    name = longest_part(DEVICES, text)
    if name is None:
        raise ValueError(f"unknown GPU {text!r}: give one of {', '.join(DEVICES)}")
    variant = re.search(r"\b(pcie|nvl|laptop)\b", text)
    memory = re.search(r"(\d+) ?gi?b\b", text)
    known_gib = DEVICES[name].memory_bytes / 2**30
    if variant or (memory and int(memory[1]) < LEAST_MEMORY * known_gib):
        raise ValueError(
            f"{text!r} has other figures than the {name} of {known_gib:.0f} GiB that `baton plan` knows: give {name} "
            "to plan with those"
        )
    return name


def _slos(text: str) -> SloConfig:
    if text in list(SloClass):
        return SloConfig(**dict.fromkeys(map(str, SloClass), SloConfig().of(SloClass(text))))
    slos = parse_slos(text)
    for objective in map(slos.of, SloClass):
        if not (objective.ttft_s > 0 and objective.tpot_s > 0):
            raise ValueError(f"--slo {text}: TTFT and TPOT must be more than 0")
        if objective.tpot_s >= UNLIKELY_TPOT:
            raise ValueError(
                f"--slo {text}: a TPOT of {objective.tpot_s:g} s is {UNLIKELY_TPOT:g} s or more: give seconds, not "
                "milliseconds, as in 0.5/0.05"
            )
    return slos


def _document(
    planner: _Planner, plan: CapacityPlan, computed: Sizing, cell: SimulatedCell | None, simulated: Sizing | None
) -> dict[str, object]:
    pool, bound = plan.bottleneck
    demand = {name: getattr(planner.demand, name) for name in Demand.__struct_fields__ if name != "requests"}
    return {
        "answer": msgspec.to_builtins((simulated or computed).pools.at_least(plan.least_workers)),
        "demand": {**demand, "hit_share": planner.demand.hit_share},
        "bottleneck": {"pool": pool, "bound": bound.name.lower()},
        "prefill_worker": {
            **msgspec.to_builtins(plan.prefill),
            "busy_s": plan.prefill_load.busy_s,
            "squared_cv": plan.prefill_load.squared_cv,
        },
        "decode_worker": {**msgspec.to_builtins(plan.decode), "kv_tokens": plan.kv_tokens},
        "at_this_load": {"batch": plan.batch, "step_s": plan.step_s},
        "work_s": plan.work_s,
        "num_running": plan.num_running,
        "computed": msgspec.to_builtins(computed),
        "simulated": msgspec.to_builtins(simulated),
        "cell": msgspec.to_builtins(cell),
        "difference_of_devices": simulated.num_devices / computed.num_devices - 1 if simulated else None,
    }
