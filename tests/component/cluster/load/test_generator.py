"""Loads on an endpoint whose latencies are known."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cluster.load.client.client import LoadClient
from cluster.load.client.endpoint import Api
from cluster.load.generator import Generator, Progress, Sent
from cluster.load.prompts.texts import PromptWriter, Wording
from cluster.load.record import LoadEnding, LoadRecord
from cluster.load.sender import RequestForm, Sender
from cluster.load.workload import LengthCut, MixSource, Session, endless, fixed_mix
from cluster.messages.ids import SloClass
from cluster.simulation.traffic.workload import Arrival, PromptPiece, Speaker
from tests.component.cluster.load.fake_endpoint import MODEL, FakeEndpoint, running

SLACK_S = 0.5
"""How much later than planned something may happen on a busy machine."""


def row(at_s: float = 0.0, tokens: int = 5, name: str = "a", session: str = "") -> Arrival:
    pieces = (PromptPiece(Speaker.USER, name, 20),)
    return Arrival(arrival_s=at_s, num_prompt=20, num_output=tokens, pieces=pieces, session=session)


@asynccontextmanager
async def generator(
    fake: FakeEndpoint, *, api: Api = Api.CHAT, max_retries: int = 0, slo_class: SloClass | None = None
) -> AsyncIterator[Generator]:
    async with running(fake):
        form = RequestForm(
            api=api, model=MODEL, fields={}, headers={}, slo_class=slo_class, timeout_s=5.0, max_retries=max_retries
        )
        client = LoadClient(fake.endpoint)
        sender = Sender(client, fake.endpoint, form, PromptWriter(Wording(first_overhead=3), "salt"))
        yield Generator(sender, lambda _: None, Progress())
        client.close()


async def sent(fake: FakeEndpoint, rows: list[Arrival], api: Api = Api.CHAT) -> list[LoadRecord]:
    async with generator(fake, api=api) as one:
        return (await one.open_loop(rows)).records


@pytest.mark.parametrize("api", Api)
async def test_each_api_is_timed_and_counted(api: Api) -> None:
    fake = FakeEndpoint(ttft_s=0.1, itl_s=0.02, cached_tokens=8)
    (record,) = await sent(fake, [row(tokens=11)], api)
    assert record.ending is LoadEnding.FINISHED
    assert record.ttft_s is not None and 0.1 <= record.ttft_s < 0.1 + SLACK_S
    assert record.tpot_s is not None and 0.019 <= record.tpot_s < 0.02 + SLACK_S / 10
    assert record.e2e_s == pytest.approx(record.ttft_s + 10 * record.tpot_s)
    assert (record.num_prompt, record.num_output, record.num_cached) == (20, 11, 8)
    assert len(record.gaps_s) >= 8


async def test_tpot_is_by_tokens_where_events_have_several() -> None:
    fake = FakeEndpoint(itl_s=0.01, tokens_per_event=10)
    (record,) = await sent(fake, [row(tokens=31)])
    # three gaps of 10 tokens and one of a single token: 0.3 s or so over 30 tokens
    assert record.tpot_s is not None and 0.006 <= record.tpot_s < 0.01 + SLACK_S / 30


async def test_open_loop_sends_at_its_times_whatever_the_answers_do() -> None:
    fake = FakeEndpoint(ttft_s=0.6)
    records = await sent(fake, [row(0.1 * number) for number in range(5)])
    assert fake.most_open == 5
    assert [record.number for record in sorted(records, key=lambda r: r.due_s)] == [0, 1, 2, 3, 4]
    assert all(record.late_s < SLACK_S for record in records)


async def test_waiting_for_room_counts_from_when_a_request_was_due() -> None:
    async with generator(fake := FakeEndpoint(ttft_s=0.2)) as one:
        records = (await one.open_loop([row() for _ in range(3)], max_open=1)).records
    assert fake.most_open == 1
    assert [r.ttft_s is not None and r.ttft_s >= 0.2 * (1 + number) for number, r in enumerate(records)] == [True] * 3
    assert records[2].late_s >= 0.4


async def test_closed_loop_keeps_so_many_requests_open() -> None:
    async with generator(fake := FakeEndpoint(ttft_s=0.03)) as one:
        sessions = endless(MixSource("", fixed_mix(20, 2), None), 0, LengthCut())
        records = (await one.closed_loop(sessions, 4, number=30)).records
    assert len(records) == 30 and fake.most_open == 4
    assert sorted(record.number for record in records) == list(range(30))


async def test_closed_loop_ends_with_its_time_and_waits_for_what_is_open() -> None:
    async with generator(FakeEndpoint(ttft_s=0.05)) as one:
        sessions = endless(MixSource("", fixed_mix(20, 2), None), 0, LengthCut())
        done = await one.closed_loop(sessions, 2, duration_s=0.4)
    assert {record.ending for record in done.records} == {LoadEnding.FINISHED}
    assert all(record.due_s < 0.4 for record in done.records)


async def test_turns_of_a_session_are_sent_one_after_another() -> None:
    session: Session = [row(name=f"{number}", session="s") for number in range(3)]
    async with generator(fake := FakeEndpoint(ttft_s=0.02)) as one:
        records = (await one.closed_loop(iter([session]), 3, number=3)).records
    assert fake.most_open == 1 and len(records) == 3


async def test_stop_gives_up_what_is_open_and_tells_what_was_done() -> None:
    async with generator(fake := FakeEndpoint()) as one:
        load = asyncio.create_task(one.open_loop([row(), row(30.0)]))
        await fake.ended.wait()
        one.stop()
        done: Sent = await load
    assert {record.ending for record in done.records} <= {LoadEnding.FINISHED, LoadEnding.STOPPED}
    assert len(done.records) == 1


async def test_stop_ends_a_closed_loop_whose_requests_hang() -> None:
    async with generator(fake := FakeEndpoint(ttft_s=60.0)) as one:
        load = asyncio.create_task(one.closed_loop(iter([[row()], [row()]]), 2, number=2))
        await fake.crowded.wait()
        one.stop()
        done = await load
    assert [record.ending for record in done.records] == [LoadEnding.STOPPED] * 2


async def test_slo_class_is_asked_for_as_service_tier() -> None:
    async with generator(fake := FakeEndpoint(), slo_class=SloClass.BATCH) as one:
        await one.open_loop([row()])
    assert fake.bodies[0]["service_tier"] == "flex"
    await sent(plain := FakeEndpoint(), [row()])
    assert "service_tier" not in plain.bodies[0]


async def test_connections_are_kept() -> None:
    fake = FakeEndpoint()
    async with generator(fake) as one:
        await one.open_loop([row(0.05 * number) for number in range(3)])
    assert len({head.partition(b"\r\n")[0] for head in fake.heads}) == 1
    assert fake.num_connections == 1


async def test_generator_knows_how_late_it_was() -> None:
    async with generator(FakeEndpoint()) as one:
        done = await one.open_loop([row(0.1)])
    assert done.generator.most_open == 1
    assert 0 <= done.generator.loop_lag_p99_s <= done.generator.loop_lag_max_s
    assert done.generator.cpu_share > 0
