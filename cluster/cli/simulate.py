"""`baton simulate`: runs a workload on a simulated cluster, once per policy, and writes a table, JSON and charts."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cluster.cli.truth_options import add_truth, truth_of
from cluster.messages.reports import REPORT_INTERVAL_S
from cluster.simulation.baselines import BASELINES
from cluster.simulation.experiment import Cluster, Experiment, TargetMissed, parse_link
from cluster.simulation.pools.pool_setting import Reporting
from cluster.simulation.rate_search import max_rate
from cluster.simulation.results.figures import FigureRun, charts
from cluster.simulation.results.summary import RunSummary, aligned, summary, table, who_attained
from cluster.simulation.traffic.log_traffic import read_log
from cluster.simulation.traffic.mixes import Renewal, generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.slos import OBJECTIVES, parse_slos
from cluster.simulation.traffic.traces import read_lengths, read_trace, repeated
from cluster.simulation.traffic.workload import Arrival, RequestRecord, rate_per_s
from router.prediction.hardware import DEVICES, LINKS, MODELS

DEFAULT_REQUESTS = 2500
"""Requests of a synthetic workload if --requests is missing."""
TTY_INTERVAL_S, LOG_INTERVAL_S = 0.5, 10.0
"""Seconds between two progress messages on a terminal, and in a log. Longer shows progress later; shorter writes more
lines to a log.
"""

_EPILOG = f"""\
policies, on all workers as one pool:
  {", ".join(name for name, baseline in BASELINES.items() if not baseline.has_prefill_pool)}
policies, with --prefill and --decode workers:
  {", ".join(name for name, baseline in BASELINES.items() if baseline.has_prefill_pool)}

mixes:
{chr(10).join(f"  {name:12} {mix.what}, {mix.rate_per_s:g} req/s" for name, mix in MIXES.items())}

SLOs: {", ".join(OBJECTIVES)}, or TTFT+Nx/TPOT in seconds, where x is the prefill time of the prompt on an idle worker:
  {"; ".join(f"{name} = {o.ttft_s:g}+{o.ttft_per_prefill:g}x/{o.tpot_s:g}" for name, o in OBJECTIVES.items())}
  By class: interactive=tight,standard=mid,batch=30/0.2

models:  {", ".join(MODELS)}
devices: {", ".join(DEVICES)}
links:   GB/s, or {", ".join(LINKS)}

examples:
  baton simulate
  baton simulate --mix code-bursts --slo tight --rate 1,2,4,8 --plots charts
  baton simulate --trace conversation.jsonl.gz --rows 7000: --rate 1.5x --host-tokens 1000000
  baton simulate --log /var/log/baton/stimuli --prefill 2 --decode 6
  baton simulate --mix documents --max-rate --policy goodput,pd_mooncake --prefill 6 --decode 2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs a workload through the production Scheduler and sessions with simulated engines, in virtual "
        "time, once per policy, and shows how many requests met their SLO. Starts no process and needs no GPU."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_workload(parser)
    _add_cluster(parser)
    parser.add_argument(
        "--policy",
        type=_policies,
        default="goodput,min_ttft_admission,lmetric,pd_mooncake,round_robin",
        metavar="NAME[,NAME...]",
        help="policies to compare, or `all` (default: %(default)s)",
    )
    parser.add_argument("--max-rate", action="store_true", help="search for the highest rate that attains --target")
    parser.add_argument(
        "--target", type=float, default=0.9, help="share of requests that must meet their SLO (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write charts (SVG) to this folder")
    parser.set_defaults(run=run)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    workload = parser.add_argument_group("workload")
    source = workload.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, metavar="FILE", help="Mooncake JSON lines or Azure CSV, plain or gzipped")
    source.add_argument(
        "--log", type=Path, metavar="LOG", help="the requests of a Scheduler's stimulus log (baton replay --help)"
    )
    source.add_argument(
        "--mix", choices=MIXES, metavar="NAME", default="tenants", help="synthetic workload (default: %(default)s)"
    )
    workload.add_argument(
        "--rows", type=_slice, metavar="A:B", default=slice(None), help="rows of the trace (default: all)"
    )
    workload.add_argument(
        "--lengths", type=Path, metavar="FILE", help="draw the lengths of a mix from this trace or CSV"
    )
    workload.add_argument(
        "--cv",
        type=float,
        help="coefficient of variation of the gaps between arrivals of a mix; Poisson has 1 (default: the mix's own)",
    )
    workload.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help=f"number of requests; a shorter trace repeats (default: the trace's own, {DEFAULT_REQUESTS} of a mix)",
    )
    workload.add_argument(
        "--rate",
        type=_rates,
        metavar="R[,R...]",
        default=["1x"],
        help="requests per second, or e.g. 1.5x for a multiple of the workload's own rate (default: 1x)",
    )
    workload.add_argument("--slo", type=parse_slos, default="mid", help="SLO of the requests (default: %(default)s)")
    workload.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)")
    workload.add_argument(
        "--tries", type=int, default=1, metavar="N", help="attempts of a client that is refused (default: %(default)s)"
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--model", default="qwen3-32b", help="model (default: %(default)s)")
    cluster.add_argument("--gpu", default="h100", help="device (default: %(default)s)")
    cluster.add_argument("--tp", type=int, default=2, metavar="N", help="devices per worker (default: %(default)s)")
    cluster.add_argument("--prefill", type=int, default=4, metavar="N", help="prefill workers (default: %(default)s)")
    cluster.add_argument("--decode", type=int, default=4, metavar="N", help="decode workers (default: %(default)s)")
    cluster.add_argument(
        "--step-tokens",
        type=int,
        default=512,
        metavar="N",
        help="most tokens of a decode worker's step, for policies without Baton's steps (default: %(default)s)",
    )
    cluster.add_argument(
        "--link", type=parse_link, default="90", help="bandwidth of a worker's link (default: %(default)s GB/s)"
    )
    cluster.add_argument(
        "--host-tokens",
        type=int,
        default=0,
        metavar="N",
        help="tokens of KV cache in host memory, per worker (default: 0)",
    )
    cluster.add_argument(
        "--report-interval",
        type=float,
        default=REPORT_INTERVAL_S,
        metavar="S",
        help="seconds between a worker's reports (default: %(default)s)",
    )
    add_truth(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        rows = _rows(arguments)
        experiment = Experiment(rows, _cluster(arguments), arguments.slo)
        if not 0 < arguments.target < 1:
            raise ValueError(f"--target {arguments.target:g} is not between 0 and 1")
    except (OSError, ValueError) as error:
        print(f"baton: {error}", file=sys.stderr)
        return 2
    print(_heading(arguments, rows), file=sys.stderr)
    comparison = _Comparison(experiment, arguments)
    try:
        comparison.run()
    except KeyboardInterrupt:
        print("\nbaton: stopped", file=sys.stderr)
        return 130
    return 0


class _Comparison:
    """Runs the experiments of the command line and shows the results."""

    def __init__(self, experiment: Experiment, arguments: argparse.Namespace) -> None:
        self._experiment = experiment
        self._arguments = arguments
        self._runs: list[FigureRun] = []
        self._max_rates: dict[str, float] = {}

    def run(self) -> None:
        arguments = self._arguments
        if arguments.max_rate:
            self._search(arguments.policy, arguments.target)
        else:
            rates = [_absolute(rate, self._experiment.own_rate_per_s) for rate in arguments.rate]
            number = 0
            for rate in rates:
                for policy in arguments.policy:
                    number += 1
                    self._try(policy, rate, f"[{number}/{len(rates) * len(arguments.policy)}]")
        print(table([(run.label, run.summary) for run in self._shown()]))
        print(f"\n{who_attained([(run.label, run.summary) for run in self._shown()])}")
        if self._max_rates:
            print(f"\n{_max_rate_table(self._max_rates)}")
        self._write()

    def _search(self, policies: Sequence[str], target: float) -> None:
        guess = _absolute(self._arguments.rate[0], self._experiment.own_rate_per_s)
        for number, policy in enumerate(policies, 1):
            mark = f"[{number}/{len(policies)}]"

            def trial(rate: float, policy: str = policy, mark: str = mark) -> float | None:
                run = self._try(policy, rate, mark, target)
                return run.summary.attainment if run else None

            found = max_rate(trial, target, guess)
            self._max_rates[self._label(policy)] = found.rate
            guess = found.rate or guess

    def _try(self, policy: str, rate: float, mark: str, target: float | None = None) -> FigureRun | None:
        """Run one policy at one rate. Returns None if the run cannot attain the target."""
        label = self._label(policy)
        progress = _Progress(f"{mark} {label} at {rate:.2f} req/s", self._experiment.num_requests)
        try:
            records = self._experiment.run(
                policy,
                self._arguments.prefill,
                rate,
                self._arguments.seed,
                target=target,
                on_record=progress.count,
            )
        except TargetMissed:
            progress.end("too fast")
            return None
        run = FigureRun(label, rate, summary(records), records)
        progress.end(f"{100 * run.summary.attainment:.1f} % within SLO")
        self._runs.append(run)
        return run

    def _label(self, policy: str) -> str:
        return f"{policy} {self._experiment.split_name(policy, self._arguments.prefill)}"

    def _shown(self) -> list[FigureRun]:
        """The runs to show. After a search, the run of each policy at its highest rate."""
        if not self._max_rates:
            return self._runs
        return [run for run in self._runs if run.rate == self._max_rates[run.label]]

    def _write(self) -> None:
        arguments = self._arguments
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
            arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(self._document())))
        if arguments.plots:
            arguments.plots.mkdir(parents=True, exist_ok=True)
            for name, svg in charts(self._runs, self._shown()).items():
                (arguments.plots / name).write_text(svg)
                print(f"baton: wrote {arguments.plots / name}", file=sys.stderr)

    def _document(self) -> dict[str, object]:
        return {
            "workload": _source(self._arguments),
            "num_requests": self._experiment.num_requests,
            "seed": self._arguments.seed,
            "slos": self._arguments.slo,
            "cluster": self._experiment.cluster,
            "runs": [{"policy": run.label, "rate_per_s": run.rate, **_fields(run.summary)} for run in self._runs],
            "max_rates_per_s": self._max_rates or None,
        }


class _Progress:
    """Progress on standard error. On a terminal, one line is rewritten."""

    def __init__(self, what: str, num_requests: int) -> None:
        self._what = what
        self._total = num_requests
        self._done = 0
        self._began_at = self._shown_at = time.monotonic()

    def count(self, record: RequestRecord) -> None:
        self._done += 1
        now = time.monotonic()
        interval_s = TTY_INTERVAL_S if sys.stderr.isatty() else LOG_INTERVAL_S
        if now - self._shown_at >= interval_s:
            self._shown_at = now
            left_s = (now - self._began_at) / self._done * (self._total - self._done)
            self._show(f"{100 * self._done // self._total} % of {self._total}, {left_s:.0f} s left", is_last=False)

    def end(self, result: str) -> None:
        self._show(f"{result} ({time.monotonic() - self._began_at:.1f} s)", is_last=True)

    def _show(self, state: str, *, is_last: bool) -> None:
        is_terminal = sys.stderr.isatty()
        start, end = ("\r\x1b[K" if is_terminal else "", "\n" if is_last or not is_terminal else "")
        print(f"{start}{self._what}: {state}", end=end, file=sys.stderr, flush=True)


def _rows(arguments: argparse.Namespace) -> list[Arrival]:
    number, rows = arguments.requests, arguments.rows
    if number is not None and number < 10:
        raise ValueError(f"--requests {number}: at least 10 requests are needed")
    if arguments.log:
        logged = read_log(arguments.log)[rows]
        return repeated(logged, number) if number else logged
    if arguments.trace:
        read = read_trace(arguments.trace, rows.start or 0, rows.stop, arguments.seed)
        return repeated(read, number) if number else read
    mix = MIXES[arguments.mix]
    if arguments.cv is not None:
        mix = msgspec.structs.replace(mix, arrivals=Renewal(cv=arguments.cv))
    lengths = read_lengths(arguments.lengths, rows.start or 0, rows.stop) if arguments.lengths else None
    return generate(mix, number or DEFAULT_REQUESTS, arguments.seed, lengths)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    if arguments.prefill < 0 or arguments.decode < 1:
        raise ValueError("--decode must be at least 1, and --prefill at least 0")
    return Cluster(
        model=arguments.model,
        device=arguments.gpu,
        tensor_parallel=arguments.tp,
        num_workers=arguments.prefill + arguments.decode,
        link=arguments.link,
        decode_step_tokens=arguments.step_tokens,
        max_tries=arguments.tries,
        host_tokens=arguments.host_tokens,
        reporting=Reporting(interval_s=arguments.report_interval),
        truth=truth_of(arguments),
    )


def _source(arguments: argparse.Namespace) -> str:
    if arguments.log:
        return str(arguments.log)
    return arguments.trace.name if arguments.trace else f"mix {arguments.mix}"


def _heading(arguments: argparse.Namespace, rows: Sequence[Arrival]) -> str:
    prompt, output = (
        sum(values) / len(rows) for values in ((r.num_prompt for r in rows), (r.num_output for r in rows))
    )
    return (
        f"{_source(arguments)}: {len(rows)} requests at {rate_per_s(rows):.2f}/s, on average {prompt:.0f} prompt and "
        f"{output:.0f} output tokens. {arguments.prefill + arguments.decode} workers of {arguments.tp} {arguments.gpu} "
        f"with {arguments.model}."
    )


def _max_rate_table(max_rates: dict[str, float]) -> str:
    reference = next((name for name in max_rates if name.startswith("round_robin")), next(iter(max_rates)))
    rows = [["policy", "max req/s", f"x {reference}"]]
    for name, rate in max_rates.items():
        rows.append([name, f"{rate:.2f}", f"{rate / max_rates[reference]:.2f}" if max_rates[reference] else "-"])
    return aligned(rows)


def _fields(run: RunSummary) -> dict[str, object]:
    return dict(msgspec.to_builtins(run))


def _absolute(rate: str, own_per_s: float) -> float:
    return float(rate.removesuffix("x")) * (own_per_s if rate.endswith("x") else 1.0)


def _rates(text: str) -> list[str]:
    rates = text.split(",")
    if not all(float(rate.removesuffix("x")) > 0 for rate in rates):
        raise ValueError(text)
    return rates


def _slice(text: str) -> slice:
    first, _, last = text.partition(":")
    return slice(int(first) if first else None, int(last) if last else None)


def _policies(text: str) -> list[str]:
    names = list(BASELINES) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(BASELINES)}")
    return names
