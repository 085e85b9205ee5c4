"""The evaluation matrix: the highest rate at which each policy meets the SLOs of 90 % of all requests, by cell.

Eight simulated workers (two H100 with Qwen3-32B each), each kind of traffic, five SLOs, the policies of
cluster/simulation/baselines.py; those of others with a prefill pool at their best split. Then each policy at 0.9 of its
own rate, with something wrong. docs/benchmarks.md says how to read it.

Every simulated run is kept in bench/results/goodput-trials.jsonl as soon as it has ended: a matrix that was stopped
goes on where it was.
"""

import argparse
import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

import msgspec

from bench.goals.goodput import COMPARED, RECORDED, aims, missed
from bench.goals.verdict import conclude
from bench.matrix import robust
from bench.matrix.cells import CELLS, HELD_OUT, REPO_ROOT, ROOFLINE, TRAFFIC, matching
from bench.matrix.report import EDGE, Matrix, details, gains, markdown, rates
from bench.matrix.search import OUR_SPLIT, OURS, Job, Result, find
from bench.matrix.trials import code_digest
from cluster import compiled
from cluster.cli.truth_options import add_truth, truth_of
from cluster.simulation.baselines import BASELINES
from cluster.simulation.results.summary import aligned

QUICK_CELLS = ["conversation/mid", "azure-conv/mid", "code-bursts/mid"]
QUICK_REQUESTS = 1500
QUICK_SPLITS, ALL_SPLITS = (2, 4, 6), tuple(range(1, 8))
STEP_TOKENS = (256, 192, 320, 384, 512, 640, 768)
"""The best of these is taken for each policy, cell and seed; the first is searched first. More trials for finer steps;
fewer give the policies of others worse steps than they could have. At 1,024, policies of one pool lose a quarter to a
third of their rate on the code traffic.
"""
RESULTS = REPO_ROOT / "bench" / "results"


def main() -> None:
    arguments = _arguments()
    try:
        cells = matching(arguments.cells)
    except ValueError as error:
        sys.exit(f"bench: {error}")
    if not compiled.is_in_use():
        print("bench: placement runs from its sources, at a third of the speed: see `make compile`", file=sys.stderr)
    bench = _Bench(arguments, cells)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        bench.run()
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("\nbench: stopped; what has been simulated is kept, the same command goes on")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three cells, three splits, 1,500 requests: minutes")
    parser.add_argument("--cells", nargs="+", metavar="CELL", help="traffic/slo, with wildcards; `--list` names them")
    parser.add_argument("--held-out", action="store_true", help="the held-out traffic instead of that for tuning")
    parser.add_argument("--policies", nargs="+", choices=BASELINES, metavar="NAME", help=f"of {', '.join(BASELINES)}")
    parser.add_argument(
        "--splits",
        type=int,
        nargs="+",
        metavar="P",
        help=f"prefill workers of eight that policies of two pools choose from; {OURS} has {OUR_SPLIT}",
    )
    parser.add_argument("--requests", type=int, metavar="N", help="per run (5,000 to 8,819, by traffic)")
    parser.add_argument(
        "--step-tokens",
        type=int,
        nargs="+",
        default=STEP_TOKENS,
        metavar="N",
        help="most tokens of a step where prompts are computed beside decodes, to choose from "
        f"({' '.join(map(str, STEP_TOKENS))}; vLLM's own defaults are 2048 and 8192)",
    )
    parser.add_argument("--target", type=float, default=0.9, help="attainment at the highest rate (%(default)s)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="repeat with so many seeds (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="at a time (%(default)s)")
    add_truth(parser)
    parser.add_argument("--no-robust", action="store_true", help="leave out the rows with something wrong")
    parser.add_argument("--only-robust", action="store_true", help="only these")
    parser.add_argument(
        "--reuse",
        nargs="+",
        default=[],
        choices=[*BASELINES, "static"],
        metavar="NAME",
        help="policies whose runs by older code count; `static`: those without Baton's admission and engines",
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every run")
    parser.add_argument("--json", type=Path, default=RESULTS / "goodput.json", metavar="FILE", help="(%(default)s)")
    parser.add_argument("--list", action="store_true", help="name the cells and stop")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(CELLS))
        sys.exit()
    if arguments.cells is None:
        arguments.cells = QUICK_CELLS if arguments.quick else [cell for cell in CELLS if HELD_OUT not in cell]
    if arguments.held_out:
        arguments.cells = [cell if HELD_OUT in cell else cell.replace("/", f"{HELD_OUT}/") for cell in arguments.cells]
    if "static" in arguments.reuse:
        static = (name for name, policy in BASELINES.items() if policy.has_step_size and not policy.has_admission)
        arguments.reuse = [*arguments.reuse, *static]
    arguments.seed = 0
    try:
        arguments.truth = truth_of(arguments)
    except ValueError as error:
        sys.exit(f"bench: {error}")
    arguments.requests = arguments.requests or (QUICK_REQUESTS if arguments.quick else None)
    arguments.splits = tuple(arguments.splits or (QUICK_SPLITS if arguments.quick else ALL_SPLITS))
    arguments.policies = [name for name in BASELINES if not arguments.policies or name in arguments.policies]
    return arguments


class _Bench:
    def __init__(self, arguments: argparse.Namespace, cells: Sequence[str]) -> None:
        self._arguments = arguments
        self._cells = cells
        self._code = code_digest()
        self._results: list[Result] = []
        self._began_at = time.monotonic()

    def run(self) -> None:
        fixed: list[robust.Fixed] = []
        with self._executor() as executor:
            try:
                if not self._arguments.only_robust:
                    self._search(executor, self._cells, self._arguments.policies)
                if not self._arguments.no_robust:
                    fixed = self._robust(executor)
            except KeyboardInterrupt:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                executor.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
        self._show(fixed)

    def _executor(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._arguments.processes, multiprocessing.get_context("spawn"))

    # ---- the matrix

    def _search(self, executor: ProcessPoolExecutor, cells: Sequence[str], policies: Sequence[str]) -> None:
        jobs = [self._job(*place) for place in self._places(cells, policies)]
        weight_left = sum(job.weight for job in jobs)
        weight_done, busy_s = 0.0, 0.0
        pending: dict[Future[Result], Job] = {}
        queue = iter(jobs)
        while True:
            while len(pending) < self._arguments.processes and (job := next(queue, None)):
                guessed = msgspec.structs.replace(job, guess_per_s=self._guess(job))
                pending[executor.submit(find, guessed, *self._trial_file())] = job
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                job = pending.pop(future)
                try:
                    result = future.result()
                except ValueError as error:
                    raise ValueError(f"{job.cell} {job.policy}: {error}") from error
                self._results.append(result)
                weight_left -= job.weight
                weight_done, busy_s = weight_done + job.weight, busy_s + result.took_s
                left_s = busy_s / weight_done * max(0.0, weight_left) / self._arguments.processes
                self._tell(result, len(jobs), left_s)

    def _places(self, cells: Sequence[str], policies: Sequence[str]) -> Iterator[tuple[str, str, int]]:
        for cell in cells:
            for policy in policies:
                for seed in range(self._arguments.seeds):
                    yield cell, policy, seed

    def _job(self, cell: str, policy: str, seed: int) -> Job:
        traffic = TRAFFIC[cell.partition("/")[0]]
        return Job(
            cell=cell,
            policy=policy,
            seed=seed,
            splits=self._arguments.splits,
            num_requests=self._arguments.requests or traffic.num_requests,
            step_tokens=tuple(self._arguments.step_tokens),
            target=self._arguments.target,
            guess_per_s=traffic.guess_per_s,
            truth=self._arguments.truth,
        )

    def _guess(self, job: Job) -> float:
        """A neighbour's rate, where there is one."""
        same_cell = [result.rate for result in self._results if result.cell == job.cell and result.rate]
        return same_cell[-1] if same_cell else job.guess_per_s

    def _trial_file(self) -> tuple[Path, str, frozenset[str], bool]:
        trials = RESULTS / "goodput-trials.jsonl"
        return trials, self._code, frozenset(self._arguments.reuse), self._arguments.verbose

    def _tell(self, result: Result, num_jobs: int, left_s: float) -> None:
        split = f" at {result.num_prefill}P" if BASELINES[result.policy].has_prefill_pool and result.rate else ""
        times = f"{_minutes(time.monotonic() - self._began_at)}, {_minutes(left_s)} left"
        print(
            f"[{len(self._results)}/{num_jobs}, {times}] {result.cell} {result.policy}: "
            f"{result.rate:.2f} req/s{split} ({result.took_s:.0f} s)",
            file=sys.stderr,
            flush=True,
        )

    # ---- the rows with something wrong

    def _robust(self, executor: ProcessPoolExecutor) -> list[robust.Fixed]:
        best = {result.policy: result for result in self._results if result.cell == robust.CELL and not result.seed}
        missing = [name for name in robust.POLICIES if name not in best]
        self._search(executor, [robust.CELL], missing)
        best |= {result.policy: result for result in self._results if result.cell == robust.CELL and not result.seed}
        truth = self._arguments.truth
        futures: list[Future[robust.Fixed]] = []
        for variation in robust.VARIATIONS:
            for policy in variation.policies:
                if best[policy].rate:
                    futures.append(executor.submit(robust.measure, variation, best[policy], truth, *self._trial_file()))
        results = []
        for number, future in enumerate(futures, 1):
            result = future.result()
            results.append(result)
            attained = f"{100 * result.summary.attainment:.1f} %" if result.summary else "-"
            print(f"[{number}/{len(futures)}] {result.name}, {result.policy}: {attained}", file=sys.stderr, flush=True)
        return results

    # ---- results

    def _show(self, fixed: list[robust.Fixed]) -> None:
        matrix = Matrix(self._results, self._arguments.step_tokens)
        text = f"`{' '.join(sys.argv)}`, code {self._code}\n\n"
        if self._results:
            attained = f"{100 * self._arguments.target:g} % attainment"
            is_ours_compared = OURS in matrix.policies and len(matrix.policies) > 1
            tables = [rates(matrix), gains(matrix), aims(matrix)] if is_ours_compared else [rates(matrix)]
            print(f"\nHighest rate at {attained}, with the best split and step tokens; {EDGE}: none beyond was offered")
            for rows in tables:
                print(f"\n{aligned(rows)}")
            print(f"\nWho is served at that rate\n\n{aligned(details(matrix))}")
            text += "\n".join(markdown(rows) for rows in [*tables, details(matrix)])
        if fixed:
            print("\nAt 0.9 of the own rate: attainment, good requests per second\n")
            print(aligned(robust.rows(fixed)))
            text += "\n" + markdown(robust.rows(fixed))
        document = {
            "command": sys.argv,
            "code": self._code,
            "requests": self._arguments.requests,
            "step_tokens": self._arguments.step_tokens,
            "target": self._arguments.target,
            "truth": self._arguments.truth,
            "matrix": self._results,
            "fixed": fixed,
        }
        self._arguments.json.parent.mkdir(parents=True, exist_ok=True)
        self._arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document)))
        self._arguments.json.with_suffix(".md").write_text(text)
        print(f"\nbench: wrote {self._arguments.json} and .md in {_minutes(time.monotonic() - self._began_at)}")
        # What is on record was measured on step times that the Scheduler's predictions start from.
        if self._arguments.truth == ROOFLINE and not RECORDED.keys().isdisjoint(matrix.cells):
            if {OURS, *COMPARED} <= set(matrix.policies):
                conclude(missed(matrix))
            else:
                print(f"\nNo goals: they are ratios to the best of all rivals, which {', '.join(COMPARED)} belong to.")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
