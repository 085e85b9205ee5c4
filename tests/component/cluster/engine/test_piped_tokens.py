"""The token pipe, both ends, over a real socket."""

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from cluster.engine.piped_tokens import TokenPipeSocket
from cluster.engine_core.token_pipe import LENGTH, PipedOutput, PipedStep, TokenPipe

MANY = 3000
"""Steps that do not fit into the buffers of a socket whose reader sleeps."""


def a_step(number: int, num_tokens: int = 1) -> PipedStep:
    return PipedStep(float(number), [PipedOutput("a", [number] * num_tokens)])


class Read:
    """What comes out of a pipe."""

    def __init__(self, fails_on: PipedStep | None = None) -> None:
        self._fails_on = fails_on
        self.steps: list[PipedStep] = []
        self.lost = asyncio.Event()
        self._changed = asyncio.Event()

    def take(self, step: PipedStep) -> None:
        self.steps.append(step)
        self._changed.set()
        if step == self._fails_on:
            raise RuntimeError("a bug")

    async def until(self, num_steps: int) -> None:
        while len(self.steps) < num_steps:
            self._changed.clear()
            await self._changed.wait()


async def connected(read: Read) -> socket.socket:
    """The core's end of a pipe that is read."""
    listening = TokenPipeSocket()
    core = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    core.connect(listening.path)
    listening.read(read.take, read.lost.set)
    return core


async def test_steps_come_in_order_and_the_end_is_told() -> None:
    read = Read()
    with await connected(read) as core:
        pipe = TokenPipe(core)
        for number in range(5):
            pipe.send(a_step(number))
        await read.until(5)
        assert read.steps == [a_step(number) for number in range(5)]
        assert not read.lost.is_set()
    await read.lost.wait()


async def test_core_does_not_wait_for_a_worker_that_sleeps_and_nothing_is_lost() -> None:
    read = Read()
    with await connected(read) as core:
        pipe = TokenPipe(core)
        for number in range(MANY):  # the loop that reads does not run meanwhile
            pipe.send(a_step(number, num_tokens=100))
        await read.until(MANY)
        pipe.send(a_step(MANY))
        await read.until(MANY + 1)
    assert [step.at for step in read.steps] == [float(number) for number in range(MANY + 1)]


async def test_core_whose_worker_is_gone_goes_on() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    pipe = TokenPipe(ours)
    for number in range(3):
        pipe.send(a_step(number))


@pytest.mark.parametrize("part", [1, 3, 7])
async def test_step_may_come_in_parts(part: int) -> None:
    read, loop = Read(), asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs, await connected(read) as core:
        TokenPipe(theirs).send(a_step(1))
        message = ours.recv(1 << 16)
        core.setblocking(False)
        for begin in range(0, len(message), part):
            await loop.sock_sendall(core, message[begin : begin + part])
            await asyncio.sleep(0)
        await read.until(1)
    assert read.steps == [a_step(1)]


async def test_what_is_no_step_ends_the_pipe() -> None:
    read = Read()
    with await connected(read) as core:
        core.sendall(LENGTH.pack(3) + b"abc")
        await read.lost.wait()
    assert read.steps == []


async def test_step_whose_taking_fails_ends_the_pipe_and_no_step_is_taken_twice() -> None:
    """Answers that may lack a part of it must not go on as if they were whole."""
    read = Read(fails_on=a_step(1))
    with await connected(read) as core:
        pipe = TokenPipe(core)
        for number in range(3):  # the loop that reads does not run meanwhile
            pipe.send(a_step(number))
        await read.lost.wait()
        pipe.send(a_step(3))
        await asyncio.sleep(0)
    assert read.steps == [a_step(0), a_step(1)]


async def test_only_this_user_reaches_the_socket_and_its_name_goes_with_the_connection() -> None:
    listening = TokenPipeSocket()
    folder = Path(listening.path).parent
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as core:
        core.connect(listening.path)
        listening.read(lambda step: None, lambda: None)
        assert not folder.exists()


async def test_engine_whose_core_has_not_connected_is_not_read() -> None:
    listening = TokenPipeSocket()
    with pytest.raises(BlockingIOError):
        listening.read(lambda step: None, lambda: None)
