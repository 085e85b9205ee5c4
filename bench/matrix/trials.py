"""Trials and the file that keeps them: one line of JSON per simulated run, appended as soon as it has ended.

A trial is known by everything that it depends on, the simulator's and the router's code included; so a matrix that was
stopped goes on where it was, and one after a change of the code begins anew. `--reuse` names policies whose trials by
older code count.
"""

import logging
import os
import sys
import time
from hashlib import blake2b
from pathlib import Path

import msgspec

from bench.matrix.cells import REPO_ROOT, experiment
from cluster.simulation.experiment import Cluster, TargetMissed
from cluster.simulation.results.summary import RunSummary, summary

logging.getLogger("router").setLevel(logging.ERROR)
"""Many simulated workers die. A log line for each request that goes on elsewhere would drown the rest."""

SOURCES = (
    "bench/matrix/cells.py",
    "cluster/slo.py",
    "cluster/messages/*.py",
    "cluster/simulation/**/*.py",
    "router/**/*.py",
)


class TrialKey(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    policy: str
    num_prefill: int
    rate: float
    seed: int
    num_requests: int
    target: float | None
    """None: the run goes on to its end, whatever it attains."""
    cluster: Cluster


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    key: TrialKey
    code: str
    summary: RunSummary | None
    """None: out of reach of the target."""
    took_s: float


class TrialFile:
    """Any number of processes may append to the same file."""

    def __init__(self, file: Path, code: str, reused: frozenset[str] = frozenset(), is_verbose: bool = False) -> None:
        """`reused`: policies whose trials count whatever the code was."""
        self._file = file
        self._code = code
        self._is_verbose = is_verbose
        self._known: dict[TrialKey, Trial] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        for line in file.read_bytes().splitlines() if file.exists() else ():
            try:
                trial = msgspec.json.decode(line, type=Trial)
            except msgspec.DecodeError:
                continue  # of a run that was killed while it wrote, or of another version
            if trial.code == code or trial.key.policy in reused:
                self._known[trial.key] = trial

    def get(self, key: TrialKey) -> Trial:
        """The trial from the file, or simulated now."""
        trial = self._known.get(key)
        if trial is None:
            trial = self._known[key] = self._simulated(key)
            line = msgspec.json.encode(trial) + b"\n"
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(descriptor, line)  # one call: lines of several processes do not mix
            os.close(descriptor)
        return trial

    def _simulated(self, key: TrialKey) -> Trial:
        began_at = time.monotonic()
        there = experiment(key.cell, key.seed, key.num_requests, key.cluster)
        try:
            run = summary(there.run(key.policy, key.num_prefill, key.rate, key.seed, target=key.target))
        except TargetMissed:
            run = None
        took_s = time.monotonic() - began_at
        if self._is_verbose:
            attained = f"{100 * run.attainment:.1f} %" if run else "too fast"
            split = there.split_name(key.policy, key.num_prefill)
            print(f"  {key.cell} {key.policy} {split} {key.rate:.3g}/s: {attained} ({took_s:.1f} s)", file=sys.stderr)
        return Trial(key=key, code=self._code, summary=run, took_s=took_s)


def code_digest() -> str:
    """A digest of the code that decides the result of a trial."""
    digest = blake2b(digest_size=8)
    for pattern in SOURCES:
        for file in sorted(REPO_ROOT.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()
