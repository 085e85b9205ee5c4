"""Synthetic traffic: arrivals and lengths drawn from distributions, conversations whose prompts grow, several tenants.

A mix is the sum of its streams. A stream is a kind of sessions. A session is one request, or a conversation: each later
prompt is the prompt before, the answer to it, and some new tokens. The same mix, number of requests and seed give the
same rows. Sessions here are clients' conversations, not the sessions of router/session.
"""

import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist

import msgspec

from cluster.messages.ids import SloClass
from cluster.messages.kv_events import KEY_BYTES
from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival, PromptPiece, Speaker

CYCLE = 48
"""Number of bursts whose sizes, lengths and pauses together are an even sample of their distributions. Without this
sample, the heaviest burst of one seed would be twice that of another seed. Lower knows fewer sizes of bursts; higher
makes short workloads differ more between seeds.
"""
WARM_UP = 0.25
"""Share of the requests that is drawn and dropped before the first row. Lower begins with conversations that are all at
their first turn; higher draws more rows in vain.
"""


LEAD_SESSIONS = 2000
"""Sessions that tell how long sessions last. More take longer; fewer do not see the longest."""
LEAD_SHARE = 0.995
"""Share of the turns that come within the lead of a mix after their session's begin. Higher draws longer leads in vain;
lower begins with a rate below that of the mix.
"""


class Spread(msgspec.Struct, frozen=True):
    """A distribution of token counts or seconds, by its quantiles. The distribution is log-linear between them."""

    quantiles: tuple[tuple[float, float], ...]
    """Pairs of a probability and a value in ascending order, from probability 0 to 1."""

    def at(self, probability: float) -> float:
        points = self.quantiles
        upper = next((i for i, (p, _) in enumerate(points) if p >= probability), len(points) - 1)
        (p0, low), (p1, high) = points[max(0, upper - 1)], points[upper]
        weight = (probability - p0) / (p1 - p0) if p1 > p0 else 1.0
        return math.expm1((1 - weight) * math.log1p(low) + weight * math.log1p(high))

    def draw(self, rng: random.Random) -> float:
        return self.at(rng.random())


def log_normal(median: float, p90: float, most: float) -> Spread:
    """A log-normal distribution with this median and 90th percentile, cut off at `most`."""
    sigma = math.log(p90 / median) / NormalDist().inv_cdf(0.9)
    grid = [0.001, 0.01, *(i / 20 for i in range(1, 20)), 0.99, 0.999]
    inner = [(p, min(most, median * math.exp(sigma * NormalDist().inv_cdf(p)))) for p in grid]
    return Spread(((0.0, inner[0][1]), *inner, (1.0, most)))


class Renewal(msgspec.Struct, frozen=True):
    """Arrivals with independent gaps from a Gamma distribution."""

    cv: float = 1.0
    """Coefficient of variation: the standard deviation of the gaps over their mean. 1 is a Poisson process, and 0 has
    equal gaps.
    """

    def times(self, rng: random.Random) -> Iterator[float]:
        now = 0.0
        while True:
            now += rng.gammavariate(1 / self.cv**2, self.cv**2) if self.cv else 1.0
            yield now


class Bursts(msgspec.Struct, frozen=True, kw_only=True):
    """Arrivals in bursts, with a silence before each burst. Each burst begins with its peak."""

    silence_s: float
    """Mean length of a silence, in seconds. Lengths have an exponential distribution."""
    burst_s: float
    """Mean length of a burst of mean size, in seconds. Lengths have a log-normal distribution, and grow with the square
    root of the burst's size.
    """
    burst_requests: float
    """Mean number of sessions in a burst. Numbers have a log-normal distribution."""
    size_sigma: float = 0.7
    """Standard deviation of the logarithm of a burst's size."""
    length_sigma: float = 0.3
    """Standard deviation of the logarithm of a burst's length."""
    peak: float = 2.0
    """How front-loaded a burst is: the first share `x` of its time holds `x ** (1 / peak)` of it. 1 is even."""

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
    """One kind of sessions: their lengths, their turns, their tenant and their SLO class."""

    share: float = 1.0
    """Share of this stream in the sessions of its mix, relative to the shares of the mix's streams."""
    prompts: Spread
    """Tokens of a session's first prompt, without the system prompt."""
    outputs: Spread
    """Tokens of an answer."""
    further_turns: Spread | None = None
    """Number of turns after a session's first one. None makes sessions of one request."""
    think_s: Spread | None = None
    """Seconds from the arrival of one turn to the arrival of the next one."""
    new_tokens: Spread | None = None
    """Tokens that a turn adds to the prompt and the answer before it. None makes sessions of one request."""
    max_prompt: int = 32_768
    """Longest prompt of a conversation, in tokens. A conversation ends before a turn whose prompt would be longer."""
    num_system_prompts: int = 0
    """Number of different system prompts. Each session begins with one of them. 0 is no shared system prompt."""
    system_tokens: int = 0
    """Tokens of each system prompt."""
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of one or more streams."""

    what: str
    """Description for the help text."""
    rate_per_s: float
    """The mix's own rate, in requests per second."""
    arrivals: Renewal | Bursts = Renewal()
    """Arrivals of the sessions of all streams."""
    streams: tuple[Stream, ...]


def generate(
    mix: Mix,
    num_requests: int,
    seed: int = 0,
    lengths: Sequence[tuple[int, int]] | None = None,
    *,
    starts_in_equilibrium: bool = False,
    block_tokens: int = BLOCK_TOKENS,
) -> list[Arrival]:
    """Draw `num_requests` requests at the mix's own rate, in order of arrival. The first one arrives at 0.

    If `lengths` is given, each request has one of these pairs of prompt and output tokens, and prompts share nothing.
    `starts_in_equilibrium`: at 0 there are as many sessions as later, so that the rate is the same from the begin to
    the end. Otherwise sessions have begun only shortly before, and the rate rises for as long as sessions last.
    `block_tokens`: prompt tokens per block hash, which must be those of the engines' blocks.
    """
    rng = random.Random(seed)
    if starts_in_equilibrium:
        rows = itertools.islice(_rows(mix, rng, block_tokens, lead_s(mix)), num_requests)
    else:
        num_dropped = round(WARM_UP * num_requests)
        rows = itertools.islice(_rows(mix, rng, block_tokens), num_dropped, num_dropped + num_requests)
    kept = [row if lengths is None else _resized(row, rng.choice(lengths)) for row in rows]
    stretch = (num_requests - 1) / mix.rate_per_s / ((kept[-1].arrival_s - kept[0].arrival_s) or 1.0)
    return [msgspec.structs.replace(row, arrival_s=(row.arrival_s - kept[0].arrival_s) * stretch) for row in kept]


@lru_cache(32)
def lead_s(mix: Mix) -> float:
    """Seconds from the begin of a session within which nearly all turns of sessions come."""
    rng = random.Random(0)
    streams, shares = mix.streams, [stream.share for stream in mix.streams]
    offsets = sorted(
        offset_s
        for number in range(LEAD_SESSIONS if any(stream.further_turns for stream in streams) else 1)
        for offset_s in _turn_times(_Session(rng.choices(streams, shares)[0], number, rng), rng)
    )
    return offsets[int(LEAD_SHARE * (len(offsets) - 1))]


def _turn_times(session: "_Session", rng: random.Random) -> Iterator[float]:
    """When the turns of a session come, from its begin."""
    now = 0.0
    yield now
    while session.goes_on(rng):
        assert session.stream.think_s is not None
        now += session.stream.think_s.draw(rng)
        yield now


def _rows(mix: Mix, rng: random.Random, block_tokens: int, from_s: float = 0.0) -> Iterator[Arrival]:
    """Yield the requests from `from_s` after the first session on, in order of arrival, without end."""
    turns: list[tuple[float, int, _Session]] = []
    streams, shares = mix.streams, [stream.share for stream in mix.streams]
    session_s = 1.0 if isinstance(mix.arrivals, Bursts) else _requests_per_session(mix) / mix.rate_per_s
    for number, start in enumerate(mix.arrivals.times(rng)):
        start_s = start * session_s
        while turns and turns[0][0] <= start_s:
            yield from _take_turn(turns, rng, from_s)
        (stream,) = rng.choices(streams, shares)
        heapq.heappush(turns, (start_s, number, _Session(stream, number, rng, block_tokens)))


def _requests_per_session(mix: Mix) -> float:
    grid = _grid()
    weighted = sum(
        stream.share * (1 + (sum(map(stream.further_turns.at, grid)) / len(grid) if stream.further_turns else 0.0))
        for stream in mix.streams
    )
    return weighted / sum(stream.share for stream in mix.streams)


def _take_turn(turns: list[tuple[float, int, "_Session"]], rng: random.Random, from_s: float) -> Iterator[Arrival]:
    now, number, session = heapq.heappop(turns)
    if now >= from_s:
        yield session.request(now)
    if session.goes_on(rng):
        assert session.stream.think_s is not None
        heapq.heappush(turns, (now + session.stream.think_s.draw(rng), number, session))


class _Session:
    """One conversation of a stream, up to its next prompt."""

    __slots__ = ("_block_tokens", "_hashes", "_name", "_num_output", "_num_prompt", "_pieces", "_turns_left", "stream")

    def __init__(self, stream: Stream, number: int, rng: random.Random, block_tokens: int = BLOCK_TOKENS) -> None:
        self.stream = stream
        self._block_tokens = block_tokens
        self._name = f"session {number}"
        num_first = max(1, round(stream.prompts.draw(rng)))
        self._num_prompt = stream.system_tokens + num_first
        self._num_output = max(1, round(stream.outputs.draw(rng)))
        self._turns_left = round(stream.further_turns.draw(rng)) if stream.further_turns else 0
        self._hashes: list[bytes] = []
        self._pieces: list[PromptPiece] = []
        system = self._name
        if stream.num_system_prompts:
            system = f"system prompt {stream.tenant} {rng.randrange(stream.num_system_prompts)}"
            self._hashes = [_hash(system, block) for block in range(stream.system_tokens // block_tokens)]
        if stream.system_tokens:
            self._pieces.append(PromptPiece(Speaker.SYSTEM, system, stream.system_tokens))
        self._say(Speaker.USER, num_first)

    def request(self, now: float) -> Arrival:
        num_blocks = self._num_prompt // self._block_tokens
        self._hashes.extend(_hash(self._name, block) for block in range(len(self._hashes), num_blocks))
        return Arrival(
            arrival_s=now,
            num_prompt=self._num_prompt,
            num_output=self._num_output,
            block_hashes=self._hashes[:num_blocks],
            tenant=self.stream.tenant,
            slo_class=self.stream.slo_class,
            session=self._name if self.stream.further_turns else "",
            pieces=tuple(self._pieces),
        )

    def goes_on(self, rng: random.Random) -> bool:
        if not self._turns_left or self.stream.new_tokens is None:
            return False
        self._turns_left -= 1
        num_new = max(1, round(self.stream.new_tokens.draw(rng)))
        self._num_prompt += self._num_output + num_new
        self._say(Speaker.ASSISTANT, self._num_output)
        self._say(Speaker.USER, num_new)
        self._num_output = max(1, round(self.stream.outputs.draw(rng)))
        return self._num_prompt <= self.stream.max_prompt

    def _say(self, speaker: Speaker, num_tokens: int) -> None:
        self._pieces.append(PromptPiece(speaker, f"{self._name}, {len(self._pieces)}", num_tokens))


def _resized(row: Arrival, length: tuple[int, int]) -> Arrival:
    num_prompt, num_output = length
    return msgspec.structs.replace(row, num_prompt=num_prompt, num_output=num_output, block_hashes=[], pieces=())


def _hash(name: str, block: int) -> bytes:
    return blake2b(f"{name} {block}".encode(), digest_size=KEY_BYTES).digest()


def _grid() -> list[float]:
    return [(i + 0.5) / CYCLE for i in range(CYCLE)]


def _even(values: list[float], rng: random.Random) -> list[float]:
    """The values scaled to a mean of 1, in random order."""
    mean = sum(values) / len(values)
    scaled = [value / mean for value in values]
    rng.shuffle(scaled)
    return scaled
