"""Strangers at every channel of a running service while a client streams: nobody notices them but the metrics."""

import random
import socket
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cluster.config.environment import SECRET_VARIABLE
from cluster.network.handshake import GREETING_BYTES, MAGIC, VERSION
from tests.drills.client import ANSWERED, Client
from tests.drills.word_lists import word_list
from tests.hostile.sockets.strangers import FUZZ_MINUTES, nested
from tests.real_cluster.service import DECODE_PROCESS, PREFILL_PROCESS, SCHEDULER_PROCESS, Service

LISTENING = (SCHEDULER_PROCESS, PREFILL_PROCESS, DECODE_PROCESS)
NUM_TOKENS = 1500
ANSWERED_WITHIN_S = 60.0
ATTACKED_FOR_S = 4.0
NUM_HELD = 300
"""Connections of strangers at once: more than a listener keeps without proof."""
SILENCE_S = 1.0
"""Between two tokens of a stream, and for an answer on another connection."""
MAX_GROWTH_BYTES = 64 << 20

SAYINGS = [
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    MAGIC,
    MAGIC + bytes([VERSION]) + b"\0" * 200,
    MAGIC + bytes([VERSION + 1]),
    b"\xff" * 65536,
    nested(50_000),
]


def test_strangers_at_the_channels_stop_no_stream_and_no_process(service: Service, model: str) -> None:
    _attack_while_a_client_streams(service, model, random.Random(0))


@pytest.mark.fuzz
@pytest.mark.timeout(60 * FUZZ_MINUTES + 300)
def test_strangers_at_the_channels_for_minutes(service: Service, model: str) -> None:
    ends_at = time.monotonic() + 60 * FUZZ_MINUTES
    while time.monotonic() < ends_at:
        seed = time.monotonic_ns()
        print("seed", seed)  # noqa: T201  # pytest shows it where the test fails
        _attack_while_a_client_streams(service, model, random.Random(seed))


def _attack_while_a_client_streams(service: Service, model: str, rng: random.Random) -> None:
    replicas = {name: service.process(name) for name in LISTENING}
    channels = [address for replica in replicas.values() for address in _channels(replica)]
    assert len(channels) == len(LISTENING)
    memory = {name: replica.memory_info().rss for name, replica in replicas.items()}
    num_before = service.metric("baton_strangers_total", socket="channel")
    stream = Client(service.port, timeout_s=ANSWERED_WITHIN_S)
    stream.ask(model, word_list(41, 150), NUM_TOKENS)
    stream.wait_for_frames(5, ANSWERED_WITHIN_S)
    began_at = time.monotonic()
    longest_s, num_attacks = _attack(channels, service, rng)
    assert longest_s < SILENCE_S
    assert stream.seen.longest_silence_s(began_at) < SILENCE_S
    assert stream.wait_for_end(ANSWERED_WITHIN_S)
    assert stream.outcome == ANSWERED
    assert {name: service.process(name) for name in LISTENING} == replicas
    counted = service.metric("baton_strangers_total", socket="channel") - num_before
    assert counted > num_attacks / 2
    for name, replica in replicas.items():
        assert replica.memory_info().rss - memory[name] < MAX_GROWTH_BYTES


def test_secret_is_known_to_the_engines_and_written_nowhere(service: Service) -> None:
    engines = [
        child for name in (PREFILL_PROCESS, DECODE_PROCESS) for child in service.process(name).children(recursive=True)
    ]
    secrets = {environment[SECRET_VARIABLE] for engine in engines if (environment := _environment(engine))}
    assert len(secrets) == 1
    (secret,) = secrets
    logs = [service.log, *_ray_logs(service).rglob("*")]
    telling = [log for log in logs if log.is_file() and secret.encode() in log.read_bytes()]
    assert telling == []


def _attack(channels: list[tuple[str, int]], service: Service, rng: random.Random) -> tuple[float, int]:
    """Returns how long the slowest honest request took meanwhile, in seconds, and how many strangers there were."""
    held: list[socket.socket] = []
    longest_s, num_attacks = 0.0, 0
    ends_at = time.monotonic() + ATTACKED_FOR_S
    while time.monotonic() < ends_at:
        for _ in range(20):
            stranger = socket.create_connection(rng.choice(channels), timeout=5)
            stranger.setblocking(False)
            with suppress(OSError):
                stranger.send(rng.choice([*SAYINGS, rng.randbytes(rng.randrange(300))]))
            held.append(stranger)
            num_attacks += 1
        asked_at = time.monotonic()
        assert service.of_operators("/baton/links").is_success
        longest_s = max(longest_s, time.monotonic() - asked_at)
        while len(held) > NUM_HELD:
            held.pop(0).close()
    for stranger in held:
        stranger.close()
    return longest_s, num_attacks


def _channels(replica: psutil.Process) -> list[tuple[str, int]]:
    """Where a process listens and greets as a channel does."""
    listening = [c.laddr for c in replica.net_connections() if c.status == psutil.CONN_LISTEN]
    return [(address.ip, address.port) for address in listening if _greets(address.ip, address.port)]


def _greets(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=1) as stranger:
        greeting = stranger.recv(GREETING_BYTES)
        return len(greeting) == GREETING_BYTES and greeting.startswith(MAGIC)
    return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """Empty for helpers that are given none of it."""
    environment = process.environ()
    return environment if SECRET_VARIABLE in environment else {}


def _ray_logs(service: Service) -> Path:
    (argument,) = {
        argument.removeprefix("--log_dir=")
        for process in service.process(SCHEDULER_PROCESS).parents()
        for argument in process.cmdline()
        if argument.startswith("--log_dir=")
    }
    return Path(argument)
