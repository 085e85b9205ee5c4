"""Step times of an engine that is slower than others, or whose steps vary. They wrap any other step times. Pure."""

from math import exp
from typing import Protocol

import msgspec

from cluster.simulation.engine.engine_setting import StepTimes


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """How much the times of equal steps differ. The constructor checks the ranges."""

    sigma: float = 0.0
    """Standard deviation of the logarithm of the factor on each step or run of decode steps. The mean factor is 1."""
    stall_share: float = 0.0
    """Share of the steps and runs that stall, as with garbage collection, a thermal limit or a neighbour's work."""
    stall_s: float = 0.0
    """Length of a stall, in seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 1:
            raise ValueError(f"noise {self.sigma:g} is not between 0 and 1")
        if not (0 <= self.stall_share <= 1 and 0 <= self.stall_s < float("inf")):
            raise ValueError(f"stalls {self.stall_share:g}x{self.stall_s:g} are not a share from 0 to 1 and seconds")

    @property
    def is_none(self) -> bool:
        return self.sigma == 0 and self.stall_share * self.stall_s == 0


class Chance(Protocol):
    """Random numbers, as `random.Random` draws them."""

    def random(self) -> float: ...

    def gauss(self, mu: float, sigma: float, /) -> float: ...


class SlowSteps:
    """Every step takes `factor` times as long."""

    __slots__ = ("_factor", "_times")

    def __init__(self, times: StepTimes, factor: float) -> None:
        self._times = times
        self._factor = factor

    def step_s(self, num_new: int, attended: float, num_decoding: int, context_tokens: int) -> float:
        return self._factor * self._times.step_s(num_new, attended, num_decoding, context_tokens)

    def decode_run_s(self, num_decoding: int, context_tokens: int, num_steps: int) -> float:
        return self._factor * self._times.decode_run_s(num_decoding, context_tokens, num_steps)

    def decode_steps_within(self, num_decoding: int, context_tokens: int, seconds: float) -> int:
        guess = self._times.decode_steps_within(num_decoding, context_tokens, seconds / self._factor)
        return _exact(self, num_decoding, context_tokens, seconds, guess)


class NoisySteps:
    """Each step with prompt tokens, and each run of decode steps, takes a random factor and sometimes a stall more.

    A run is known by its batch and by the context at its start. All questions about the latest run have the same
    factor and stall, so that they agree. A step with prompt tokens, or another run, ends the latest run. The stall of a
    run is in its first step. One object serves one engine. The same random numbers and questions give the same times.
    """

    __slots__ = ("_chance", "_factor", "_noise", "_run", "_stall_s", "_times")

    def __init__(self, times: StepTimes, noise: Noise, chance: Chance) -> None:
        self._times = times
        self._noise = noise
        self._chance = chance
        self._run: tuple[int, int] | None = None
        self._factor, self._stall_s = 1.0, 0.0

    def step_s(self, num_new: int, attended: float, num_decoding: int, context_tokens: int) -> float:
        if not num_new:
            return self.decode_run_s(num_decoding, context_tokens, 1)
        self._run = None
        self._draw()
        return self._stall_s + self._factor * self._times.step_s(num_new, attended, num_decoding, context_tokens)

    def decode_run_s(self, num_decoding: int, context_tokens: int, num_steps: int) -> float:
        self._enter(num_decoding, context_tokens)
        run_s = self._factor * self._times.decode_run_s(num_decoding, context_tokens, num_steps)
        return self._stall_s + run_s if num_steps else 0.0

    def decode_steps_within(self, num_decoding: int, context_tokens: int, seconds: float) -> int:
        self._enter(num_decoding, context_tokens)
        left_s = max(seconds - self._stall_s, 0.0) / self._factor
        guess = self._times.decode_steps_within(num_decoding, context_tokens, left_s)
        return _exact(self, num_decoding, context_tokens, seconds, guess)

    def _enter(self, num_decoding: int, context_tokens: int) -> None:
        if self._run != (num_decoding, context_tokens):
            self._run = num_decoding, context_tokens
            self._draw()

    def _draw(self) -> None:
        noise = self._noise
        self._factor = exp(self._chance.gauss(-(noise.sigma**2) / 2, noise.sigma))
        self._stall_s = noise.stall_s if self._chance.random() < noise.stall_share else 0.0


def _exact(times: StepTimes, num_decoding: int, context_tokens: int, seconds: float, guess: int) -> int:
    """The most steps for which `decode_run_s` is at most `seconds`, from a guess that rounding has changed."""
    while times.decode_run_s(num_decoding, context_tokens, guess + 1) <= seconds:
        guess += 1
    while guess and times.decode_run_s(num_decoding, context_tokens, guess) > seconds:
        guess -= 1
    return guess
