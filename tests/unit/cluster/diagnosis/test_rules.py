"""Each rule of `baton why`: what is asked about, which answer it gives, with which numbers, and how much it matters."""

from typing import Any

import msgspec
import pytest

from cluster.diagnosis.answer import Answer, RunningFacts, Weight
from cluster.diagnosis.rules import answers
from cluster.messages.ids import Pool, SloClass, WorkerId
from cluster.messages.operations import (
    DistrustedPair,
    LinkDoubt,
    PathReason,
    ServiceSettings,
    StoreStatus,
    TierSettings,
    UnprovedLink,
    WorkerCondition,
)
from cluster.messages.views import CellState, WaitReason
from tests.unit.statuses import (
    a_cell_view,
    a_path_count,
    a_scheduler_status,
    a_service_status,
    a_worker_status,
    facts_of,
)

P0, D0 = WorkerId("p0"), WorkerId("d0")
BUSY = a_worker_status("p0", num_open=3), a_worker_status("d0", num_open=3)


def about(facts: RunningFacts, question: str) -> list[Answer]:
    return [answer for answer in answers(facts) if question in answer.question]


def the(facts: RunningFacts, question: str) -> Answer:
    found = about(facts, question)
    assert len(found) == 1, found
    return found[0]


def test_service_without_a_fault_has_nothing_to_explain() -> None:
    assert answers(facts_of(a_scheduler_status(*BUSY, paths=[a_path_count(PathReason.HANDED_OVER)]))) == []


def test_faults_come_first() -> None:
    facts = facts_of(a_scheduler_status(a_worker_status("d0"), paths=[a_path_count(PathReason.DEARER)]))
    weights = [answer.weight for answer in answers(facts)]
    assert weights == sorted(weights, key=list(Weight).index)
    assert {Weight.FAULT, Weight.NORMAL} <= {*weights}


# ---- pools


def test_pool_without_requests_has_no_load_where_nothing_is_open() -> None:
    facts = facts_of(a_scheduler_status(a_worker_status("p0"), a_worker_status("d0")))
    for pool in Pool:
        answer = the(facts, f"is the {pool} pool idle")
        assert "no load" in answer.answer
        assert answer.weight is Weight.NORMAL


def test_pool_is_idle_while_requests_run_whole_in_the_other_one() -> None:
    paths = [a_path_count(PathReason.DEARER, 90), a_path_count(PathReason.HANDED_OVER, 10)]
    facts = facts_of(a_scheduler_status(a_worker_status("p0"), a_worker_status("d0", num_open=4), paths=paths))
    answer = the(facts, "is the prefill pool idle")
    assert "decode pool" in answer.answer
    assert answer.evidence == ["4 open requests; 10 of the last 100 placements were handed over"]


@pytest.mark.parametrize(
    ("condition", "weight"),
    [
        (WorkerCondition.DRAINING, Weight.LIMIT),
        (WorkerCondition.SUSPECTED, Weight.FAULT),
        (WorkerCondition.STALE, Weight.FAULT),
        (WorkerCondition.QUARANTINED, Weight.FAULT),
    ],
)
def test_pool_is_idle_because_of_its_workers(condition: WorkerCondition, weight: Weight) -> None:
    facts = facts_of(a_scheduler_status(a_worker_status("p0", condition=condition), BUSY[1]))
    answer = the(facts, "is the prefill pool idle")
    assert answer.evidence == [f"of 1 workers: 1 {condition}"]
    assert answer.weight is weight


def test_workers_that_do_not_report_are_a_fault_unless_the_pool_is_scaled() -> None:
    settings = ServiceSettings(replicas={Pool.PREFILL: 3, Pool.DECODE: 1})
    scheduler = a_scheduler_status(*BUSY)
    assert the(facts_of(scheduler, settings=settings), "fewer workers").evidence == ["prefill.replicas is 3; 1 report"]
    scaled = msgspec.structs.replace(settings, is_scaled=True)
    assert about(facts_of(scheduler, settings=scaled), "fewer workers") == []


# ---- handoffs


@pytest.mark.parametrize("reason", [reason for reason in PathReason if reason is not PathReason.HANDED_OVER])
def test_each_reason_of_a_whole_request_is_an_answer(reason: PathReason) -> None:
    facts = facts_of(
        a_scheduler_status(*BUSY, paths=[a_path_count(reason, 9), a_path_count(PathReason.HANDED_OVER, 1)])
    )
    answer = the(facts, "not handed over")
    assert answer.answer == reason.value
    assert answer.evidence[0] == "9 of the last 10 placements (90%)"
    assert answer.todo


def test_short_prompts_are_the_reason_where_they_are_short() -> None:
    count = a_path_count(PathReason.DEARER, mean_new_tokens=80.0, mean_extra_ttft_s=0.012, mean_extra_cost=0.5)
    answer = the(facts_of(a_scheduler_status(*BUSY, paths=[count])), "not handed over")
    assert "prompts are short" in answer.answer
    assert "+12 ms of TTFT and +0.5 of cost" in answer.evidence[-1]


def test_rare_reasons_are_not_told() -> None:
    paths = [a_path_count(PathReason.HANDED_OVER, 99), a_path_count(PathReason.ASKED, 1)]
    assert about(facts_of(a_scheduler_status(*BUSY, paths=paths)), "not handed over") == []


def test_pools_with_unequal_kv_blocks_are_a_fault() -> None:
    answer = the(facts_of(a_scheduler_status(*BUSY, mismatch="block size 16 and 32")), "not handed over")
    assert (answer.evidence, answer.weight) == (["block size 16 and 32"], Weight.FAULT)


# ---- links and trust


def an_unproved(doubt: LinkDoubt, **fields: Any) -> UnprovedLink:
    return UnprovedLink(prefill=P0, decode=D0, doubt=doubt, **fields)


@pytest.mark.parametrize(
    ("link", "up_s", "num_links", "weight"),
    [
        (an_unproved(LinkDoubt.FAILED, error="it took too long", retry_s=4.0), 10.0, 1, Weight.FAULT),
        (an_unproved(LinkDoubt.NEVER_TRIED), 10.0, 0, Weight.NORMAL),
        (an_unproved(LinkDoubt.NEVER_TRIED), 600.0, 0, Weight.FAULT),
        (an_unproved(LinkDoubt.NEVER_TRIED), 600.0, 5, Weight.NORMAL),
        (an_unproved(LinkDoubt.PROBING), 600.0, 0, Weight.NORMAL),
        (an_unproved(LinkDoubt.DOUBTFUL), 600.0, 1, Weight.NORMAL),
    ],
)
def test_unproved_links_are_told_with_their_cause(
    link: UnprovedLink, up_s: float, num_links: int, weight: Weight
) -> None:
    workers = a_worker_status("p0", num_open=3), a_worker_status("d0", num_open=3, num_links=num_links)
    answer = the(facts_of(a_scheduler_status(*workers, unproved=[link], up_s=up_s)), "links not proved")
    assert (answer.answer, answer.weight) == (link.doubt.value, weight)
    assert any(line.startswith("p0 -> d0") for line in answer.evidence)
    assert any("it took too long" in line for line in answer.evidence) == (link.error is not None)


def test_links_with_one_cause_are_one_answer() -> None:
    links = [
        UnprovedLink(prefill=WorkerId(f"p{number}"), decode=D0, doubt=LinkDoubt.FAILED, error="refused")
        for number in range(50)
    ]
    answer = the(facts_of(a_scheduler_status(*BUSY, unproved=links)), "links not proved")
    assert answer.evidence[0].startswith("50 of 50 links")
    assert len(answer.evidence) < 10


def test_draining_worker_explains_its_unproved_links() -> None:
    workers = a_worker_status("p0", condition=WorkerCondition.DRAINING), BUSY[1]
    scheduler = a_scheduler_status(*workers, unproved=[an_unproved(LinkDoubt.NEVER_TRIED)])
    assert "draining or retiring: p0" in the(facts_of(scheduler), "links not proved").evidence


@pytest.mark.parametrize(("barred_s", "weight"), [(480.0, Weight.FAULT), (0.0, Weight.LIMIT)])
def test_distrusted_pairs_are_told(barred_s: float, weight: Weight) -> None:
    pair = DistrustedPair(prefill=P0, decode=D0, num_strikes=1, barred_s=barred_s)
    answer = the(facts_of(a_scheduler_status(*BUSY, distrusted=[pair])), "not trusted")
    assert answer.weight is weight
    assert ("480 s more" in answer.evidence[0]) == (barred_s > 0)


# ---- tiers


def prompts(**sources: int) -> str:
    lines = [f'baton_prompt_tokens_total{{pool="decode",source="{name}"}} {tokens}' for name, tokens in sources.items()]
    return "\n".join(lines)


TIER = ServiceSettings(tiers={Pool.DECODE: TierSettings(dram_gib=64.0)})
"""65,536 tokens of 1 MiB for each worker."""


@pytest.mark.parametrize(
    ("page", "fields", "settings", "says"),
    [
        (prompts(computed=50_000, local=50_000), {"kv_usage": 0.9}, ServiceSettings(), "there is none"),
        (prompts(computed=50_000), {}, TIER, "prefixes are unique"),
        (prompts(computed=50_000, local=1), {"kv_capacity_tokens": 70_000}, TIER, "too small"),
        (prompts(computed=9_000, local=2_000), {}, TIER, "dropped nothing yet"),
        (prompts(computed=900_000, local=2_000), {}, TIER, "before their prompts come back"),
    ],
)
def test_tier_that_never_hits(page: str, fields: dict[str, Any], settings: ServiceSettings, says: str) -> None:
    facts = facts_of(a_scheduler_status(a_worker_status("d0", num_open=1, **fields)), page=page, settings=settings)
    assert says in the(facts, "DRAM tier of the decode pool").answer


@pytest.mark.parametrize(
    ("page", "settings"),
    [
        (prompts(computed=50_000, local=5, offloaded=1), TIER),
        (prompts(computed=50_000, local=5), ServiceSettings()),
        (prompts(computed=500), TIER),
    ],
)
def test_tier_that_hits_or_is_not_missed_is_not_told(page: str, settings: ServiceSettings) -> None:
    facts = facts_of(a_scheduler_status(a_worker_status("d0", num_open=1)), page=page, settings=settings)
    assert about(facts, "tier") == []


def test_memory_that_never_hits_has_unique_prefixes() -> None:
    facts = facts_of(a_scheduler_status(*BUSY), page=prompts(computed=50_000))
    assert "unique" in the(facts, "memory of the decode pool").answer


# ---- refusals

REFUSALS = """
baton_placements_total{answer="predicted"} 90
baton_placements_total{answer="overload"} 10
baton_goodput_requests_total{slo_class="batch",path="none",result="rejected"} 10
baton_goodput_requests_total{slo_class="batch",path="D",result="good"} 30
"""


@pytest.mark.parametrize(
    ("page", "says", "evidence", "weight"),
    [
        (REFUSALS, "the load", "10 of 100 placements since the processes have started", Weight.LIMIT),
        (REFUSALS, "the load", "batch: 10 of 40 requests (25%) were refused, for any reason", Weight.LIMIT),
        ('baton_placements_total{answer="no_worker"} 3', "no worker", "3 of 3 placements", Weight.FAULT),
        ('baton_placements_total{answer="quarantined"} 1', "quarantine", "of 2 requests", Weight.FAULT),
        ('baton_limit_decisions_total{decision="denied",counted="redis"} 4', "limits", "4 of 4", Weight.LIMIT),
        ('baton_http_refusals_total{code="bad_host"} 4', "edge", "bad_host: 4", Weight.NORMAL),
    ],
)
def test_refusals_are_told_by_their_cause(page: str, says: str, evidence: str, weight: Weight) -> None:
    answer = the(facts_of(a_scheduler_status(*BUSY, num_quarantined=2), page=page), "refused")
    assert says in answer.answer
    assert any(evidence in line for line in answer.evidence)
    assert answer.weight is weight


# ---- waits


@pytest.mark.parametrize("reason", list(WaitReason))
def test_each_reason_of_a_wait_is_an_answer(reason: WaitReason) -> None:
    scheduler = a_scheduler_status(
        *BUSY, waiting={SloClass.BATCH: 60}, oldest_wait_s=2.5, wait_reasons={WaitReason.DUE: 1, reason: 49}
    )
    (answer,) = [found for found in about(facts_of(scheduler), "requests wait") if found.answer == reason.value]
    assert answer.evidence == [
        f"49 of the first {49 if reason is WaitReason.DUE else 50} requests of the queue",
        "waiting: batch 60; for up to 2.5 s",
        "the workers have 6 placed requests, and places for 1024",
    ]
    assert answer.todo


# ---- workers


@pytest.mark.parametrize(
    ("fields", "says", "weight"),
    [
        ({"condition": WorkerCondition.SUSPECTED}, "connection has ended", Weight.FAULT),
        ({"condition": WorkerCondition.STALE}, "missed reports", Weight.FAULT),
        ({"condition": WorkerCondition.RETIRING}, "autoscaler", Weight.NORMAL),
        ({"condition": WorkerCondition.DRAINING}, "operator drains", Weight.NORMAL),
        ({"condition": WorkerCondition.QUARANTINED}, "in quarantine", Weight.FAULT),
        ({"num_holds": 2, "hold_s": 30.0}, "could not reach it", Weight.FAULT),
        ({"pace": 1.6}, "slow", Weight.LIMIT),
        ({"kv_usage": 0.99}, "memory is full", Weight.LIMIT),
        ({"num_links": 0}, "no proved link", Weight.FAULT),
        ({}, "no fault is known", Weight.NORMAL),
    ],
)
def test_worker_that_gets_nothing(fields: dict[str, Any], says: str, weight: Weight) -> None:
    others = [a_worker_status(f"d{number}", num_open=4) for number in (1, 2)]
    facts = facts_of(a_scheduler_status(BUSY[0], a_worker_status("d0", **fields), *others))
    answer = the(facts, "worker d0 get few requests")
    assert says in answer.answer
    assert answer.evidence
    assert answer.weight is weight


@pytest.mark.parametrize("condition", [WorkerCondition.QUARANTINED, WorkerCondition.DRAINING])
def test_answer_has_the_reason_of_a_quarantine(condition: WorkerCondition) -> None:
    worker = a_worker_status("d0", condition=condition, wrong_answers="answers to water differ")
    answer = the(facts_of(a_scheduler_status(BUSY[0], worker, a_worker_status("d1", num_open=4))), "worker d0")
    assert answer.evidence[-1] == "it is in quarantine: answers to water differ"


def test_worker_beside_idle_ones_is_not_told() -> None:
    facts = facts_of(a_scheduler_status(BUSY[0], a_worker_status("d0"), a_worker_status("d1", num_open=1)))
    assert about(facts, "few requests") == []


# ---- the service


def test_away_scheduler_stores_and_replicas_are_told() -> None:
    stores = [StoreStatus(name="Redis", is_there=False, is_embedded=False)]
    facts = facts_of(stores=stores, page='baton_scrape_missing{deployment="DecodeWorker"} 1')
    assert "no Scheduler answers" in the(facts, "nothing known of the workers").answer
    assert the(facts, "Redis not used").weight is Weight.FAULT
    assert the(facts, "lack replicas").evidence == ["DecodeWorker: 1"]


@pytest.mark.parametrize(
    ("state", "weight"),
    [(CellState.DRAINING, Weight.NORMAL), (CellState.AWAY, Weight.FAULT), (CellState.NOT_READY, Weight.FAULT)],
)
def test_cell_that_is_not_open_is_told(state: CellState, weight: Weight) -> None:
    page = 'baton_cell_left_requests_total{cell="b",reason="drained"} 6'
    facts = facts_of(a_scheduler_status(*BUSY), cells=[a_cell_view("a"), a_cell_view("b", state)], page=page)
    answer = the(facts, "cell b")
    assert answer.weight is weight
    assert "drained 6" in answer.evidence[-1]
    assert about(facts, "cell a") == []


def test_only_cell_is_not_told() -> None:
    facts = RunningFacts(
        status=a_service_status(a_scheduler_status(*BUSY), cells=[a_cell_view("main", CellState.NOT_READY)]),
        figures=facts_of().figures,
    )
    assert about(facts, "cell") == []
