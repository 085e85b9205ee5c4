"""`baton load` as a user runs it, on an endpoint in a thread."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.cli.main import argument_parser
from tests.component.cluster.load.fake_endpoint import MODEL, STREAM_HEAD, FakeEndpoint, running, write_data, write_json

QUICK = ["--tokens", "20:4", "--rate", "50", "--requests", "20"]


@contextmanager
def served(fake: FakeEndpoint) -> Iterator[FakeEndpoint]:
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        async with running(fake):
            started.set()
            await stopping.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10)
        loop.close()


def baton_load(*words: str) -> int:
    arguments = argument_parser().parse_args(["load", *words])
    return int(arguments.run(arguments))


def test_report_goes_to_the_terminal_and_to_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "a.jsonl", "a.html")]
    outputs = ["--json", str(files[0]), "--records", str(files[1]), "--html", str(files[2])]
    with served(FakeEndpoint(ttft_s=0.01, itl_s=0.001)) as fake:
        assert baton_load("--url", fake.url, *QUICK, *outputs, "--require", "failed==0") == 0
    text = capsys.readouterr().out
    assert MODEL in text and "18 requests count, after 2 of warm-up" in text and "20 prompt and 4 output" in text
    report = json.loads(files[0].read_text())
    assert report["setup"]["model"] == MODEL and report["runs"][0]["endings"] == {"finished": 18}
    records = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert len(records) == 20 and {record["num_prompt"] for record in records} == {20}
    assert files[2].read_text().startswith("<!doctype html>")
    assert baton_load("compare", str(files[0]), str(files[0])) == 0
    assert "no difference that shows" in capsys.readouterr().out


def test_condition_that_is_not_met_decides_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeEndpoint(ttft_s=0.05)) as fake:
        assert baton_load("--url", fake.url, *QUICK, "--ttft-ms", "10", "--require", "attainment>=0.9") == 1
    assert "attainment>=0.9 is not met: it is 0" in capsys.readouterr().err


def test_same_seed_sends_the_same_requests() -> None:
    bodies = []
    for seed in ("3", "3", "4"):
        with served(FakeEndpoint()) as fake:
            baton_load("--url", fake.url, "--tokens", "20:2", "--rate", "50", "--requests", "5", "--seed", seed)
        bodies.append([json.dumps(body) for body in fake.bodies])
    assert bodies[0] == bodies[1] != bodies[2]


def test_ramp_ends_with_the_highest_rate_that_attains(capsys: pytest.CaptureFixture[str]) -> None:
    # 50 requests/s are served, and fewer on a busy machine
    with served(OneAtATime(seconds=0.02)) as fake:
        words = ["--tokens", "20:1", "--cv", "0", "--rate", "10:90:40", "--requests", "15", "--ttft-ms", "60"]
        assert baton_load("--url", fake.url, *words) == 0
    text = capsys.readouterr().out
    assert "is the highest rate that attained 90%" in text


class OneAtATime(FakeEndpoint):
    """Answers one request after another."""

    def __init__(self, seconds: float) -> None:
        super().__init__(ttft_s=seconds)
        self._turn = asyncio.Lock()

    async def _stream(self, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        async with self._turn:
            await super()._stream(body, writer)


def test_own_fields_headers_and_key_are_sent(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-1\n")
    words = ["--key-file", str(tmp_path / "key"), "--header", "X-A: b", "--body", '{"ignore_eos": true}']
    with served(FakeEndpoint()) as fake:
        assert baton_load("--url", fake.url, *QUICK, *words, "--ttft-ms", "900") == 0
    assert fake.bodies[0]["ignore_eos"] is True
    for line in (b"Authorization: Bearer sk-1", b"X-A: b", b"x-baton-ttft-slo-ms: 900"):
        assert line in fake.heads[0]


def test_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    with served(FakeEndpoint()) as fake:
        baton_load("--url", fake.url, *QUICK)
    assert b"Authorization: Bearer sk-2" in fake.heads[0]


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeEndpoint()) as fake:
        pass
    assert baton_load("--url", fake.url, *QUICK) == 2
    assert "no service answers at" in capsys.readouterr().err


def test_endpoint_that_refuses_the_key_is_told_before_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    class Locked(FakeEndpoint):
        async def _answer(self, head: bytes, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
            write_json(writer, {"error": {"message": "who are you?"}}, "401 Unauthorized")

    with served(Locked()) as fake:
        assert baton_load("--url", fake.url, *QUICK) == 2
        assert baton_load("--url", fake.url, *QUICK, "--model", "m") == 2
    assert capsys.readouterr().err.count("who are you?") == 2


class Hostile(FakeEndpoint):
    """Names its model so that a terminal obeys, and answers with bytes that are no UTF-8."""

    async def _answer(self, head: bytes, body: dict[str, object], writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET"):
            write_json(writer, {"data": [{"id": "m\x1b]0;owned\x07\x1b[2J"}]})
        elif body.get("stream"):
            writer.write(STREAM_HEAD)
            write_data(writer, b'{"id": "\xff"}')
            writer.write(b"0\r\n\r\n")
        else:
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"usage":"\xff"}')


def test_hostile_endpoint_ends_no_load_and_reaches_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "a.json")
    with served(Hostile()) as fake:
        assert baton_load("--url", fake.url, *QUICK, "--json", file) == 1
    assert baton_load("compare", file, file) == 0
    told = capsys.readouterr()
    assert "broken" in told.out and told.out.count("m?]0;owned??[2J") == 3
    assert "\x1b" not in told.out + told.err


def test_closed_loop_of_a_mix(capsys: pytest.CaptureFixture[str]) -> None:
    with served(FakeEndpoint(cached_tokens=0)) as fake:
        words = ["--mix", "tools", "--concurrency", "4", "--requests", "30", "--max-output", "5"]
        assert baton_load("--url", fake.url, *words) == 0
    assert "closed loop with 4 users, mix tools" in capsys.readouterr().out
    assert fake.most_open == 4
    assert any(len(body["messages"]) >= 4 for body in fake.bodies)


def test_everything_refused_is_a_report_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    async def refuse(_: object, writer: asyncio.StreamWriter) -> None:
        write_json(writer, {}, "503 Service Unavailable", "Retry-After: 3\r\n")

    with served(FakeEndpoint(instead=refuse)) as fake:
        assert baton_load("--url", fake.url, *QUICK) == 1
    assert "Retry-After was 3 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--rate", "0"],
        ["--rate", "5:1:1"],
        ["--rate", "1:1000:1"],
        ["--rate", "nan"],
        ["--concurrency", "0"],
        ["--rate", "1", "--concurrency", "1"],
        ["--mix", "none"],
        ["--body", "[]"],
        ["--body", "{"],
        ["--header", "no colon"],
        ["--header", "a: b\r\nc: d"],
        ["--require", "speed>1"],
        ["--warm-up", "1"],
        ["--url", "host"],
        ["--tokens", "0:1"],
        ["--slo-class", "gold"],
    ],
)
def test_options_that_cannot_work_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        baton_load(*words)
    assert ended.value.code == 2
    assert "usage: baton load" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing")
    with served(FakeEndpoint()) as fake:
        for option in ("--trace", "--key-file", "--tokenizer"):
            assert baton_load("--url", fake.url, option, missing) == 2
    assert baton_load("compare", missing, missing) == 2
    assert capsys.readouterr().err.count("missing") >= 4
