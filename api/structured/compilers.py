"""Compiles each new constraint in a separate process, the trial, before an engine sees the constraint.

A compilation cannot be stopped within a process, and a compilation in an engine core takes CPU time and memory from all
requests of the engine. So a few processes compile first (api/structured/trial.py). If a compilation takes too long or
too much memory, its process ends and is replaced, and the request is refused. Verdicts are cached. Requests with the
same new constraint wait for one trial. A trial goes on when its clients leave, so that a repeated request starts no
second trial.

The constraints of one tenant run in all processes but one at most, and wait in a queue for these. So one process is
left to all further tenants, however many constraints a tenant sends.
"""

import asyncio
import hashlib
import json
import logging
import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cluster.config.structured_output import StructuredOutputConfig
from cluster.errors import InvalidRequest, Overloaded, ServingError, TooManyRequests
from cluster.metrics.requests import CONSTRAINTS

logger = logging.getLogger("baton.compilers")

MAX_VERDICTS = 4096
"""Verdicts in the cache. Higher takes more memory, at 100 bytes for each verdict; lower compiles rare constraints
again.
"""
WALL_FACTOR, WALL_S = 10.0, 5.0
"""A trial may take `WALL_S` seconds of wall time, and `WALL_FACTOR` times its CPU time (`compile_s`) in addition. Lower
refuses constraints on a busy machine; higher lets a client wait longer for that refusal.
"""
START_S, ENDING_S = 60.0, 1.0
"""Time in which a process must start, and time in which it must end after it has closed its output, in seconds. Then it
is killed. A shorter time kills processes on a busy machine; a longer time makes requests wait longer for a process that
hangs.
"""
RETRY_AFTER_S = 2.0
"""Time after which a client should repeat a request whose constraint was not compiled, in seconds. Shorter brings
requests back while the processes are still busy; longer leaves the processes idle.
"""


class Compilers:
    def __init__(self, config: StructuredOutputConfig, tokens: Callable[[], dict[str, Any]]) -> None:
        """`tokens` returns the data of the tokenizer that a trial needs. It is called once, in a thread, for 1 s."""
        self._config = config
        self._tokens = tokens
        self._setup: asyncio.Future[bytes] | None = None
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._trials: dict[bytes, asyncio.Task[str | None]] = {}
        self._idle: list[_Trial] = []
        self._free = asyncio.Semaphore(config.compilers)
        self._tenants: dict[str, _Tenant] = {}

    async def check(self, kind: str, spec: str, tenant: str) -> None:
        """Returns if the constraint compiles within its limits.

        Raises:
            InvalidRequest: the constraint is wrong, or costs too much to compile.
            TooManyRequests: too many constraints of the tenant wait to be compiled.
            Overloaded: the machine was too busy to compile it in time, so that its cost is unknown.
        """
        key = hashlib.blake2b(f"{kind}\n{spec}".encode(errors="surrogatepass"), digest_size=16).digest()
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            verdict = self._verdicts[key]
        else:
            verdict = await asyncio.shield(self._trials.get(key) or self._begin(key, kind, spec, tenant))
        if verdict is not None:
            raise InvalidRequest(verdict, _PARAMS.get(kind, kind), "invalid_value")

    async def close(self) -> None:
        for task in self._trials.values():
            task.cancel()
        await asyncio.gather(*self._trials.values(), return_exceptions=True)
        while self._idle:
            await self._idle.pop().end()

    def _begin(self, key: bytes, kind: str, spec: str, tenant: str) -> "asyncio.Task[str | None]":
        share = self._tenants.get(tenant)
        if share is None:
            share = self._tenants[tenant] = _Tenant(self._config.compilers - 1)
        if share.num_waiting >= self._config.max_waiting:
            raise TooManyRequests("too many new schemas and grammars wait to be compiled", RETRY_AFTER_S)
        share.num_waiting += 1
        task = asyncio.create_task(self._tried(key, kind, spec, share))
        self._trials[key] = task
        task.add_done_callback(lambda done: self._ended(key, tenant, done))
        return task

    def _ended(self, key: bytes, tenant: str, task: "asyncio.Task[str | None]") -> None:
        del self._trials[key]
        share = self._tenants[tenant]
        share.num_waiting -= 1
        if not share.num_waiting:
            del self._tenants[tenant]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the trial of a constraint failed: %r", error)

    async def _tried(self, key: bytes, kind: str, spec: str, share: "_Tenant") -> str | None:
        async with share.running, self._free:
            trial = self._take_idle() or await _Trial.start(await self._shared_setup())
            try:
                verdict = await trial.verdict(kind, spec, WALL_S + WALL_FACTOR * self._config.compile_s)
            finally:
                if trial.is_alive:
                    self._idle.append(trial)
                else:
                    await trial.end()
        CONSTRAINTS.labels(trial.result).inc()
        self._verdicts[key] = verdict
        if len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        return verdict

    def _take_idle(self) -> "_Trial | None":
        while self._idle:
            if (trial := self._idle.pop()).is_running:
                return trial
        return None

    async def _shared_setup(self) -> bytes:
        if self._setup is None:
            self._setup = asyncio.ensure_future(asyncio.to_thread(self._made_setup))
        try:
            return await asyncio.shield(self._setup)
        except Exception:
            self._setup = None  # the next constraint computes it again
            raise

    def _made_setup(self) -> bytes:
        limits = {
            "compile_s": self._config.compile_s,
            "memory_bytes": self._config.compile_memory_mib << 20,
        }
        return json.dumps(self._tokens() | limits).encode() + b"\n"


_PARAMS = {"json": "response_format", "json_object": "response_format", "structural_tag": "tools"}
"""The parameter that a constraint comes from, by its kind. A kind that is not listed is the parameter's name."""


_TOO_COSTLY = {
    -signal.SIGPROF: "too long",
    **dict.fromkeys((-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGILL), "too much memory"),
}
"""The resource that a trial ran out of, by the exit status of its process. Any further exit status shows nothing about
the constraint, as when the kernel kills the process because the machine has no memory.
"""


class _Tenant:
    """The constraints of one tenant that run or wait."""

    def __init__(self, most: int) -> None:
        self.running = asyncio.Semaphore(most)
        self.num_waiting = 0


class _Trial:
    """A process that compiles constraints, one at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.is_alive = True
        self.result = ""
        """Outcome of the last constraint, as a label of baton_constraints_total."""

    @classmethod
    async def start(cls, setup: bytes) -> "_Trial":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "api.structured.trial",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RAYON_NUM_THREADS": "1"},
        )
        trial = cls(process)
        if not await trial._answer_to(setup, START_S):
            await trial.end()
            raise ServingError("the process that compiles schemas and grammars cannot be started")
        return trial

    @property
    def is_running(self) -> bool:
        """Whether the process still runs. An operator or the kernel may have ended it while it was idle."""
        return self._process.returncode is None

    async def verdict(self, kind: str, spec: str, wall_s: float) -> str | None:
        """The error of the constraint, in words for the client. None for a constraint that compiles.

        Raises Overloaded if `wall_s` has passed before the constraint has used up its CPU time or its memory.
        """
        self.is_alive = False  # until the process has answered: the caller may be cancelled
        answer = await self._answer_to(json.dumps([kind, spec]).encode() + b"\n", wall_s)
        if answer:
            self.is_alive = True
            error: str | None = json.loads(answer)
            self.result = "compiled" if error is None else "invalid"
            return None if error is None else f"the schema, regular expression or grammar is invalid: {error}"
        was_forced = await self.end()
        how = None if was_forced else _TOO_COSTLY.get(self._process.returncode or 0)
        if how is None:
            raise Overloaded("the schema, regular expression or grammar could not be compiled in time", RETRY_AFTER_S)
        self.result = "too_costly"
        return f"the schema, regular expression or grammar takes {how} to compile"

    async def end(self) -> bool:
        """Ends the process, or waits until it has ended by itself. True if it was killed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.0 if self.is_alive else ENDING_S):
                await self._process.wait()
        if self._process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        return True

    async def _answer_to(self, message: bytes, wall_s: float) -> bytes:
        """The answer of the process to a message. Empty if the process has ended or does not answer in time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            async with asyncio.timeout(wall_s):
                stdin.write(message)
                await stdin.drain()
                return await stdout.readline()
        except (TimeoutError, ConnectionError):
            return b""
