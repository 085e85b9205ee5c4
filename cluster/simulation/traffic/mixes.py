"""Synthetic traffic: arrivals and lengths drawn from distributions, conversations whose prompts grow, several tenants.

A mix is a sum of streams; a stream is many sessions alike; a session is one request, or a conversation in which each
prompt is the last one with its answer and some new tokens. The same mix, number of requests and seed give the same
rows.
"""

import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from statistics import NormalDist

import msgspec

from cluster.messages.ids import SloClass
from cluster.messages.kv_events import KEY_BYTES
from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival

CYCLE = 48
"""Bursts whose sizes, lengths and pauses together are an even sample of their distributions: without it, one seed's
heaviest burst would be twice another's.
"""
WARM_UP = 0.25
"""Share of the requests that is drawn and dropped first: before it, all conversations are at their first turn."""


class Spread(msgspec.Struct, frozen=True):
    """A distribution of token counts or seconds, by its quantiles: log-linear between them."""

    quantiles: tuple[tuple[float, float], ...]
    """(probability, value) in ascending order, from probability 0 to 1."""

    def at(self, probability: float) -> float:
        points = self.quantiles
        upper = next((i for i, (p, _) in enumerate(points) if p >= probability), len(points) - 1)
        (p0, low), (p1, high) = points[max(0, upper - 1)], points[upper]
        weight = (probability - p0) / (p1 - p0) if p1 > p0 else 1.0
        return math.expm1((1 - weight) * math.log1p(low) + weight * math.log1p(high))

    def draw(self, rng: random.Random) -> float:
        return self.at(rng.random())


def log_normal(median: float, p90: float, most: float) -> Spread:
    sigma = math.log(p90 / median) / NormalDist().inv_cdf(0.9)
    grid = [0.001, 0.01, *(i / 20 for i in range(1, 20)), 0.99, 0.999]
    inner = [(p, min(most, median * math.exp(sigma * NormalDist().inv_cdf(p)))) for p in grid]
    return Spread(((0.0, inner[0][1]), *inner, (1.0, most)))


class Renewal(msgspec.Struct, frozen=True):
    """Gaps are independent, from a Gamma distribution."""

    cv: float = 1.0
    """Standard deviation of the gaps over their mean. 1: a Poisson process."""

    def times(self, rng: random.Random) -> Iterator[float]:
        shape = 1 / self.cv**2
        now = 0.0
        while True:
            now += rng.gammavariate(shape, 1 / shape)
            yield now


class Bursts(msgspec.Struct, frozen=True, kw_only=True):
    """Silences and bursts that begin with their peak, take turns."""

    silence_s: float
    """Mean; exponential."""
    burst_s: float
    """Mean; log-normal, longer for larger bursts."""
    burst_requests: float
    """Mean; log-normal."""
    size_sigma: float = 0.7
    """Of the logarithm."""
    length_sigma: float = 0.3
    peak: float = 2.0
    """How front-loaded a burst is: its first share `x` in time holds `x ** (1 / peak)` of its requests. 1: even."""

    def times(self, rng: random.Random) -> Iterator[float]:
        now = 0.0
        while True:
            silences = _even([-math.log(1 - p) for p in _grid()], rng)
            sizes = _even([math.exp(self.size_sigma * NormalDist().inv_cdf(p)) for p in _grid()], rng)
            lengths = _even([math.exp(self.length_sigma * NormalDist().inv_cdf(p)) for p in _grid()], rng)
            for silence, size, length in zip(silences, sizes, lengths, strict=True):
                now += silence * self.silence_s
                burst_s = self.burst_s * length * math.sqrt(size)
                yield from sorted(
                    now + burst_s * rng.random() ** self.peak for _ in range(round(size * self.burst_requests))
                )
                now += burst_s


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions alike."""

    share: float = 1.0
    """Of the mix's sessions, relative to the other streams'."""
    prompts: Spread
    """Tokens of a session's first prompt, without the system prompt."""
    outputs: Spread
    further_turns: Spread | None = None
    """None: sessions of one request."""
    think_s: Spread | None = None
    """From one turn's arrival to the next one's."""
    new_tokens: Spread | None = None
    """That a turn adds to the prompt and the answer before."""
    max_prompt: int = 32_768
    """A conversation ends before its prompt is longer."""
    num_system_prompts: int = 0
    system_tokens: int = 0
    """Each session begins with one of so many system prompts, each so long."""
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    """For people."""
    rate_per_s: float
    """Requests, when no other rate is asked for."""
    arrivals: Renewal | Bursts = Renewal()
    """Of sessions."""
    streams: tuple[Stream, ...]


def generate(
    mix: Mix, num_requests: int, seed: int = 0, lengths: Sequence[tuple[int, int]] | None = None
) -> list[Arrival]:
    """So many requests at the mix's own rate, in order of arrival, the earliest at 0.

    `lengths`: (prompt, output) tokens to draw every request's from; no prompt then shares anything.
    """
    rng = random.Random(seed)
    rows = itertools.islice(
        _rows(mix, rng), round(WARM_UP * num_requests), round(WARM_UP * num_requests) + num_requests
    )
    kept = [row if lengths is None else _resized(row, rng.choice(lengths)) for row in rows]
    stretch = (num_requests - 1) / mix.rate_per_s / ((kept[-1].arrival_s - kept[0].arrival_s) or 1.0)
    return [msgspec.structs.replace(row, arrival_s=(row.arrival_s - kept[0].arrival_s) * stretch) for row in kept]


def _rows(mix: Mix, rng: random.Random) -> Iterator[Arrival]:
    """Endless, in order of arrival."""
    turns: list[tuple[float, int, _Session]] = []
    streams, shares = mix.streams, [stream.share for stream in mix.streams]
    session_s = 1.0 if isinstance(mix.arrivals, Bursts) else _requests_per_session(mix) / mix.rate_per_s
    for number, start in enumerate(mix.arrivals.times(rng)):
        start_s = start * session_s
        while turns and turns[0][0] <= start_s:
            yield from _take_turn(turns, rng)
        (stream,) = rng.choices(streams, shares)
        heapq.heappush(turns, (start_s, number, _Session(stream, number, rng)))


def _requests_per_session(mix: Mix) -> float:
    grid = _grid()
    weighted = sum(
        stream.share * (1 + (sum(map(stream.further_turns.at, grid)) / len(grid) if stream.further_turns else 0.0))
        for stream in mix.streams
    )
    return weighted / sum(stream.share for stream in mix.streams)


def _take_turn(turns: list[tuple[float, int, "_Session"]], rng: random.Random) -> Iterator[Arrival]:
    now, number, session = heapq.heappop(turns)
    yield session.request(now)
    if session.goes_on(rng):
        assert session.stream.think_s is not None
        heapq.heappush(turns, (now + session.stream.think_s.draw(rng), number, session))


class _Session:
    """One conversation: what its next prompt is."""

    __slots__ = ("_hashes", "_name", "_num_output", "_num_prompt", "_turns_left", "stream")

    def __init__(self, stream: Stream, number: int, rng: random.Random) -> None:
        self.stream = stream
        self._name = f"session {number}"
        self._num_prompt = stream.system_tokens + max(1, round(stream.prompts.draw(rng)))
        self._num_output = max(1, round(stream.outputs.draw(rng)))
        self._turns_left = round(stream.further_turns.draw(rng)) if stream.further_turns else 0
        self._hashes: list[bytes] = []
        if stream.num_system_prompts:
            system = f"system prompt {stream.tenant} {rng.randrange(stream.num_system_prompts)}"
            self._hashes = [_hash(system, block) for block in range(stream.system_tokens // BLOCK_TOKENS)]

    def request(self, now: float) -> Arrival:
        num_blocks = self._num_prompt // BLOCK_TOKENS
        self._hashes.extend(_hash(self._name, block) for block in range(len(self._hashes), num_blocks))
        return Arrival(
            arrival_s=now,
            num_prompt=self._num_prompt,
            num_output=self._num_output,
            block_hashes=self._hashes[:num_blocks],
            tenant=self.stream.tenant,
            slo_class=self.stream.slo_class,
        )

    def goes_on(self, rng: random.Random) -> bool:
        if not self._turns_left or self.stream.new_tokens is None:
            return False
        self._turns_left -= 1
        self._num_prompt += self._num_output + max(1, round(self.stream.new_tokens.draw(rng)))
        self._num_output = max(1, round(self.stream.outputs.draw(rng)))
        return self._num_prompt <= self.stream.max_prompt


def _resized(row: Arrival, length: tuple[int, int]) -> Arrival:
    num_prompt, num_output = length
    return msgspec.structs.replace(row, num_prompt=num_prompt, num_output=num_output, block_hashes=[])


def _hash(name: str, block: int) -> bytes:
    return blake2b(f"{name} {block}".encode(), digest_size=KEY_BYTES).digest()


def _grid() -> list[float]:
    return [(i + 0.5) / CYCLE for i in range(CYCLE)]


def _even(values: list[float], rng: random.Random) -> list[float]:
    """In random order, with a mean of 1."""
    mean = sum(values) / len(values)
    scaled = [value / mean for value in values]
    rng.shuffle(scaled)
    return scaled
