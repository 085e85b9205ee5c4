"""What a change of roles could be worth: one split of eight workers for all phases of a load, against the best split of
each phase, as if workers changed their role at once and for nothing.

A phase has long prompts and short answers (Mooncake's conversations), or short prompts and long answers. Baton's
policy lends each pool's workers to the other pool's work (paths D and P). `pd_mooncake` never does.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from cluster.messages.transport import LinkSpeed
from cluster.planning.alike_requests import alike_requests
from cluster.simulation.experiment import Cluster, Experiment, parse_link
from cluster.simulation.results.summary import aligned, summary
from cluster.simulation.traffic.slos import parse_slos
from cluster.simulation.traffic.traces import read_trace

TRACE = "mooncake_conversation_trace.jsonl.gz"
NUM_PROMPTS, NUM_ANSWERS = 2500, 6000
"""Requests of each phase."""
PROMPTS_PER_S, ANSWERS_PER_S = 8.5, 75.0
"""Requests per second of each phase: some 90 % attain with Baton's policy. Lower rates attain with any split."""
PROMPT, ANSWER = 500, 800
"""Mean tokens of the phase with long answers."""
POLICIES = ("goodput", "pd_mooncake")


def attained(experiment: Experiment, policy: str, rate: float) -> Iterator[float]:
    """By the number of prefill workers, from one to all but one."""
    for num_prefill in range(1, experiment.cluster.num_workers):
        yield summary(experiment.run(policy, num_prefill, rate)).attainment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--link", type=parse_link, metavar="LINK", help="as for `baton simulate`")
    parser.add_argument("--slo", default="mid", metavar="SLO", help="as for `baton simulate` (%(default)s)")
    arguments = parser.parse_args()
    cluster, slos = _cluster(arguments.link), parse_slos(arguments.slo)
    phases = {
        "long prompts": (Experiment(read_trace(arguments.traces / TRACE)[:NUM_PROMPTS], cluster, slos), PROMPTS_PER_S),
        "long answers": (
            Experiment(alike_requests(ANSWERS_PER_S, PROMPT, ANSWER, 0.0, NUM_ANSWERS), cluster, slos),
            ANSWERS_PER_S,
        ),
    }
    splits = [f"{num}P{cluster.num_workers - num}D" for num in range(1, cluster.num_workers)]
    rows = [("policy", "phase", *splits)]
    gains = []
    for policy in POLICIES:
        figures = {name: list(attained(phase, policy, rate)) for name, (phase, rate) in phases.items()}
        rows += [(policy, name, *(f"{share:.1%}" for share in shares)) for name, shares in figures.items()]
        best_of_all = max(map(fmean, zip(*figures.values(), strict=True)))
        best_of_each = fmean(max(shares) for shares in figures.values())
        gains.append(
            f"{policy}: {best_of_all:.1%} with the best split for both, {best_of_each:.1%} with the best of each"
        )
    print(aligned(rows))
    print(*gains, sep="\n")


def _cluster(link: LinkSpeed | None) -> Cluster:
    return Cluster() if link is None else Cluster(link=link)


if __name__ == "__main__":
    main()
