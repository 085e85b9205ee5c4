"""Models whose prompt vLLM's prefill side does not compute to its end: hybrid ones, and several MTP modules."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm import SamplingParams
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.request import Request, RequestStatus

from cluster.messages.generation import GenerateRequest
from cluster.messages.ids import Path, WorkerId
from cluster.messages.placement import Placement
from kvtransfer.connector import HandoffScheduler
from kvtransfer.handoff import PREFILL_REQUEST, PrefillResult
from router.state import RouterState
from tests.expected import of_kind, present
from tests.unit.factories import (
    a_decode_report,
    a_placement_request,
    a_prefill_report,
    a_request,
)
from tests.unit.fake_ports import SERVED, FakeCluster, FakePrefill
from tests.unit.router.session.test_session import read, tokens

PROMPT = [11, 12, 13, 14, 15]
EOS = 15


def a_scheduler(*, has_mamba: bool, lookahead: int = 0) -> HandoffScheduler:
    scheduler = HandoffScheduler.__new__(HandoffScheduler)
    parts: Any = scheduler
    parts._has_mamba, parts._bounded_replay = has_mamba, False
    parts.vllm_config = SimpleNamespace(num_prefill_lookahead_tokens=lookahead)
    return scheduler


def prefilled(scheduler: HandoffScheduler, sampled: int) -> Request:
    """A prefill of vLLM's, after the step that sampled this token."""
    params = SamplingParams(max_tokens=1, stop_token_ids=[12])
    params.update_from_generation_config({}, EOS)
    params.extra_args = {"kv_transfer_params": dict(PREFILL_REQUEST)}
    request = Request("r", list(PROMPT), params, None)
    scheduler._truncate_request_for_prefill(request)
    request.append_output_token_ids(sampled)
    assert check_stop(request, 4096)
    return request


@pytest.mark.parametrize("sampled", [EOS, 12, 99])
@pytest.mark.parametrize(("has_mamba", "lookahead", "num_computed"), [(True, 0, 4), (False, 3, 3)])
def test_token_that_is_sampled_too_early_does_not_end_the_request(
    sampled: int, has_mamba: bool, lookahead: int, num_computed: int
) -> None:
    """With another end than by length, vLLM's connector hands nothing over."""
    request = prefilled(a_scheduler(has_mamba=has_mamba, lookahead=lookahead), sampled)
    assert request.prompt_token_ids == PROMPT[:num_computed]
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED


@pytest.mark.parametrize("sampled", [EOS, 12])
def test_token_that_follows_the_whole_prompt_may_end_the_request(sampled: int) -> None:
    request = prefilled(a_scheduler(has_mamba=False), sampled)
    assert request.prompt_token_ids == PROMPT
    assert request.status is RequestStatus.FINISHED_STOPPED


class LeavingPrefill(FakePrefill):
    """Computes the prompt but for its last token, and samples what follows the one before."""

    async def prefill(self, worker: WorkerId, request: GenerateRequest) -> PrefillResult | None:
        result = present(await super().prefill(worker, request))
        offered = present(result.handoff)
        first = msgspec.structs.replace(result.first, token_ids=[request.prompt_token_ids[-1]])
        params = {**offered.params, "remote_num_tokens": len(request.prompt_token_ids) - 1}
        handoff = msgspec.structs.replace(offered, params=params)
        return msgspec.structs.replace(result, handoff=handoff, first=first)


@pytest.mark.parametrize("verifies", [False, True])
@pytest.mark.parametrize("is_resumable", [True, False])
async def test_copy_of_the_last_prompt_token_is_not_the_answer_s_first(is_resumable: bool, verifies: bool) -> None:
    cluster = FakeCluster(prefill=LeavingPrefill())
    request = a_request(is_resumable=is_resumable, is_verifiable=True)
    assert tokens(await read(cluster.session(request, verifies=verifies))) == SERVED
    assert cluster.decode.requests[0].prompt_token_ids == request.prompt_token_ids
    assert cluster.decode.requests[0].num_generated == 0
    assert cluster.scheduler.paths == [Path.PREFILL_DECODE]
    cluster.check_settled()


def test_placement_expects_no_early_token_of_such_a_prefill_worker() -> None:
    predicted = []
    for leaves_tokens in (False, True):
        state = RouterState()
        report = a_prefill_report("p0")
        state.handle(
            msgspec.structs.replace(report, shape=msgspec.structs.replace(report.shape, leaves_tokens=leaves_tokens)),
            0.0,
        )
        state.handle(a_decode_report("d0", "p0"), 0.0)
        request = a_placement_request(
            "r", num_prompt_tokens=2000, has_early_token=True, max_output_tokens=100, path=Path.PREFILL_DECODE
        )
        answer = state.place(request, 0.0)
        predicted.append(present(of_kind(Placement, answer).predicted).ttft_s)
    assert predicted[0] < predicted[1], "its first token comes from the decode worker, later"
