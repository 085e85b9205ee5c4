"""The participants of a drill: a victim, which is the stream that a fault hits, the workers that it runs on, and a
bystander on the other workers.

The bystander is a long stream that starts first. Placement takes the least loaded workers, so the victim gets the
others: which ones, `baton_placed_requests` says.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import psutil

from kvtransfer.lease_terms import LeaseEnd
from tests.drills.client import Client
from tests.drills.kv_blocks import blocks_of, blocks_used
from tests.drills.processes import (
    DECODE,
    GENERATED_TOKENS,
    INGRESS,
    PREFILL,
    SCHEDULER,
    LiveProcesses,
    Replica,
    Snapshot,
)
from tests.drills.word_lists import LONGEST, word_list
from tests.real_cluster.service import wait_for

SCENE_TIMEOUT_S = 20.0
CLIENT_TIMEOUT_S = 90.0
BYSTANDER = word_list(seed=17, length=40)
"""One that the demo model goes on with for so long without an error, by two nats at least."""
BYSTANDER_TOKENS = 3500
"""Tokens of the bystander's answer. It takes longer than a drill, so that it never ends within one."""
BYSTANDER_FRAMES = 5
BYSTANDER_TOKENS_AHEAD = 64
"""That its engine has computed and its client has not seen yet: two KV blocks. The victim has fifteen and more."""
PROMPT_TOKENS = LONGEST
"""A prefill of some fifteen steps (`matrix.SERVICE`)."""
ANSWER_TOKENS = LONGEST
"""Some seconds: a fault that is to strike in mid-stream does. All of the list: the answer needs each KV block."""
SLICE_S = 0.02
"""CPU time of a step of the prefill engine, about."""
LEAST_PRIORITY = 19
PREFILLED_TOKENS = 8
"""Tokens that an engine may generate of an answer that it does not decode: one for each time that it computes the
prompt. More hides an engine that decodes a short rest; less takes one for it that only prefills.
"""
MODEL = "baton-demo"


class MomentMissed(Exception):
    """The victim has run past the moment at which it was to be struck, or where it was not expected."""


class Participants:
    def __init__(self, live: LiveProcesses, seed: int) -> None:
        """Starts the bystander. `seed`: the victim's prompt; each drill needs its own, or it finds a warm cache."""
        self.live = live
        self._seed = seed
        self._held: list[psutil.Process] = []
        self.prefills, self.decodes = live.replicas(PREFILL), live.replicas(DECODE)
        (self.scheduler,) = live.replicas(SCHEDULER)
        self.ingress, other_ingress = live.replicas(INGRESS)
        self.bystander = live.connect(other_ingress, CLIENT_TIMEOUT_S)
        self.bystander.ask(MODEL, BYSTANDER, BYSTANDER_TOKENS)
        self.bystander.wait_for_frames(BYSTANDER_FRAMES, SCENE_TIMEOUT_S)
        self._before = live.snapshot()
        self._placed_before = self._before.by("worker", "baton_placed_requests")
        self._computed_before = self._before.by("replica", "baton_prompt_tokens_total", pool=PREFILL, source="computed")
        (self.bystanders_decode,) = (d for d in self.decodes if self._placed_before[d.id])
        (self.other_decode,) = (d for d in self.decodes if not self._placed_before[d.id])
        self._generated_before = self._before.by("replica", GENERATED_TOKENS)
        self.victim = live.connect(self.ingress, CLIENT_TIMEOUT_S)
        self.prefill: Replica
        self.decode: Replica

    def send_victim(self) -> None:
        """A look at its workers takes as long as the slowest process takes to tell its metrics.

        Raises:
            MomentMissed: it ran where it was not expected, or ended before its workers were seen.
        """
        self.victim.ask(MODEL, word_list(self._seed, PROMPT_TOKENS), ANSWER_TOKENS)
        prefills: set[str] = set()
        decodes: set[str] = set()

        def is_placed() -> bool:
            now = self.live.snapshot()
            placed = now.by("worker", "baton_placed_requests")
            computed = now.by("replica", "baton_prompt_tokens_total", pool=PREFILL, source="computed")
            decodes.update(d.id for d in self.decodes if placed[d.id] > self._placed_before[d.id])
            for p in self.prefills:  # which is charged no longer than until the first token
                before = self._computed_before.get(p.id, 0)
                if placed[p.id] > self._placed_before[p.id] or computed.get(p.id, 0) > before:
                    prefills.add(p.id)
            return bool(prefills and decodes) or self.victim.has_ended

        try:
            wait_for(is_placed, SCENE_TIMEOUT_S, interval_s=0.01)
        except TimeoutError as error:
            raise TimeoutError(f"{self.victim.outcome}: seen on prefill {prefills} and decode {decodes}") from error
        if not (prefills and decodes):
            raise MomentMissed(f"{self.victim.outcome}: seen on prefill {prefills} and decode {decodes}")
        if len(prefills) > 1:
            raise MomentMissed("the link of another prefill worker is measured meanwhile")
        (self.prefill,) = (p for p in self.prefills if p.id in prefills)
        (self.decode,) = (d for d in self.decodes if d.id in decodes)
        if self.decode != self.other_decode:
            raise MomentMissed("it decodes beside the bystander")

    def hold(self, process: psutil.Process) -> None:
        """Stop a process until `release`."""
        self._held.append(process)
        process.suspend()

    def release(self, process: psutil.Process) -> None:
        self._held.remove(process)
        with suppress(psutil.NoSuchProcess):
            process.resume()

    def release_all(self, but: list[psutil.Process]) -> None:
        """`but`: what the fault itself has stopped."""
        for process in list(self._held):
            if process in but:
                self._held.remove(process)
            else:
                self.release(process)

    def advance(self, held: psutil.Process, until: Callable[[], bool]) -> None:
        """Let a held process run in slices, so that it does not run past a state that is short."""
        held.nice(LEAST_PRIORITY)  # nothing shall delay its next stop
        while not until():
            if self.victim.seen.arrivals:
                raise MomentMissed("it has its first token")
            used_s = _cpu_s(held)
            held.resume()
            wait_for(partial(_has_used, held, used_s + SLICE_S), SCENE_TIMEOUT_S, interval_s=0.001)
            held.suspend()
        held.nice(0)

    def is_engine(self, worker: Replica, *, running: int, waiting: int) -> bool:
        """Whether the engine's last step has left it with so many requests, and with KV blocks in use."""
        now = self.live.snapshot()
        return (
            now.total("vllm:num_requests_running", replica=worker.id) == running
            and now.total("vllm:num_requests_waiting", replica=worker.id) == waiting
            and now.total("vllm:kv_cache_usage_perc", replica=worker.id) > 0
        )

    def has_left_engine(self, worker: Replica) -> bool:
        """Whether the engine has nothing to do, as its last step has left it."""
        now = self.live.snapshot()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return not any(now.total(name, replica=worker.id) for name in names)

    def has_lease(self, worker: Replica, state: str) -> bool:
        return self.live.snapshot().total("baton_leases_open", replica=worker.id, state=state) > 0

    def leases_ended(self) -> dict[str, int]:
        """How many leases ended how since the victim came, as far as the prefill workers that counted them live."""
        now = self.live.snapshot_of_the_living()
        ended = {}
        for how in LeaseEnd:
            before = self._before.by("replica", "baton_leases_ended_total", how=how)
            after = now.by("replica", "baton_leases_ended_total", how=how)
            ended[str(how)] = int(sum(after[p.id] - before.get(p.id, 0) for p in self.prefills if p.id in after))
        return ended

    def still_held(self, worker: Replica, now: Snapshot) -> str | None:
        """What the engine has of the victim; empty when it has nothing: nothing at all, or the bystander alone. None
        when its metrics cannot be read.
        """
        usage = now.by("replica", "vllm:kv_cache_usage_perc")
        if worker.id not in usage:
            return None
        running = now.total("vllm:num_requests_running", replica=worker.id)
        waiting = now.total("vllm:num_requests_waiting", replica=worker.id)
        leases = now.total("baton_leases_open", replica=worker.id)
        num_blocks = blocks_used(usage[worker.id])
        is_bystanders = worker == self.bystanders_decode and not self.bystander.has_ended
        base = (1, self._bystanders_blocks()) if is_bystanders else (0, 0)
        is_at_base = (running, waiting, leases) == (base[0], 0, 0) and num_blocks <= base[1]
        held = f"{running:.0f} running, {waiting:.0f} waiting, {num_blocks} blocks, {leases:.0f} leases"
        return "" if is_at_base else f"{held}; the bystander has {base[1]} blocks at most"

    def decoding(self) -> set[str]:
        """The workers that may have decoded the victim's answer: those of the decode pool, and each prefill worker that
        has generated more than first tokens since the victim came.

        Raises:
            AssertionError: no engine tells how many tokens it has generated.
        """
        generated = self.live.snapshot_of_the_living().by("replica", GENERATED_TOKENS)
        assert generated, f"no engine tells {GENERATED_TOKENS}"
        grown = {replica: total - self._generated_before.get(replica, 0) for replica, total in generated.items()}
        return {str(d) for d in self.decodes} | {str(p) for p in self.prefills if grown.get(p.id, 0) > PREFILLED_TOKENS}

    def is_bystander_counted(self) -> bool:
        """Whether its engine tells at least the blocks that its tokens fill: what is held is read from that figure."""
        num_tokens = self.bystander.num_prompt_tokens + self.bystander.num_tokens_seen - 1
        usage = self.live.snapshot_of_the_living().by("replica", "vllm:kv_cache_usage_perc")
        num_blocks = blocks_used(usage[self.bystanders_decode.id])
        return self.bystander.has_ended or num_blocks >= blocks_of(num_tokens)

    def _bystanders_blocks(self) -> int:
        """At most, by what its client has seen."""
        seen = self.bystander.num_prompt_tokens + self.bystander.num_tokens_seen
        return blocks_of(seen + BYSTANDER_TOKENS_AHEAD)

    def close(self) -> None:
        self.release_all(but=[])
        for client in (self.victim, self.bystander):
            _close(client)


def _has_used(process: psutil.Process, cpu_s: float) -> bool:
    return _cpu_s(process) >= cpu_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _close(client: Client) -> None:
    if client.has_asked:
        client.leave()
    else:
        client.socket.close()
