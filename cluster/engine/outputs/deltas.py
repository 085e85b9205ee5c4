"""The engine's raw outputs as token deltas, and what their first one tells about the time before it."""

import time

from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput
from vllm.v1.engine import FinishReason as EngineFinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.serial_utils import MsgpackEncoder

from cluster.engine_core.prompt_steps import steps_in
from cluster.engine_core.token_pipe import PipedOutput
from cluster.messages.generation import FinishReason, PromptTokenSources, TokenDelta, TokenLogprob
from cluster.messages.timeline import TimelineStage
from cluster.step_stream.stage_log import IN_QUEUE, StageLog


def piped_delta(sequence: int, output: PipedOutput, num_steps: int) -> TokenDelta:
    """`num_steps`: steps since the first output of the sequence."""
    if output.finish_reason is None:
        return TokenDelta(sequence, output.token_ids)
    reason = FinishReason(str(EngineFinishReason(output.finish_reason)))
    return TokenDelta(sequence, output.token_ids, reason, output.stop_reason, num_steps=num_steps)


def delta_of(
    sequence: int, output: EngineCoreOutput, stages: StageLog, *, reports_top: bool, takes_handoff: bool
) -> TokenDelta:
    """An output that has taken vLLM's way. `reports_top`: the first delta carries the most likely tokens."""
    logprobs = top_logprobs = sources = timeline = None
    if reports_top:
        top_logprobs = _top_logprobs(output)
    elif output.new_logprobs is not None or output.new_prompt_logprobs_tensors is not None:
        logprobs = tuple(bytes(frame) for frame in MsgpackEncoder().encode(_logprobs_only(output)))
    if output.prefill_stats:
        sources = _to_sources(output.prefill_stats, takes_handoff)
        timeline = _stages_until(output, stages, is_pulled=sources.pulled > 0)
    return TokenDelta(
        sequence,
        list(output.new_token_ids),
        finish_reason=None if output.finish_reason is None else FinishReason(str(output.finish_reason)),
        stop_reason=output.stop_reason,
        prompt_sources=sources,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        stages=timeline,
    )


def _stages_until(output: EngineCoreOutput, stages: StageLog, *, is_pulled: bool) -> tuple[TimelineStage, ...]:
    """What was measured until the first output of a sequence. The engine's core has the clock of this process."""
    queued_at: float | None = None
    for event in output.events or ():
        if event.type == EngineCoreEventType.QUEUED:
            stages.go_on("receive", event.timestamp)
        if event.type != EngineCoreEventType.SCHEDULED:
            queued_at = event.timestamp  # a request that is preempted goes back into the queue
        elif queued_at is not None:
            stages.add(IN_QUEUE, queued_at, event.timestamp)
            queued_at = None
    for step in steps_in(output.trace_headers):
        more = {"steps": step.num_steps} if step.num_steps > 1 else {}
        stages.add(
            "first_decode" if is_pulled else "prefill",
            step.began_at,
            step.ended_at,
            tokens=step.num_tokens,
            batch_requests=step.num_requests,
            batch_tokens=step.num_batch_tokens,
            **more,
        )
    stages.go_on("output", time.monotonic())
    return stages.take()


def _top_logprobs(output: EngineCoreOutput) -> list[TokenLogprob] | None:
    """The most likely tokens of a step's first position. vLLM lists the sampled token before them."""
    if output.prefill_stats is None or output.new_logprobs is None:
        return None
    token_ids, logprobs = output.new_logprobs.logprob_token_ids[0], output.new_logprobs.logprobs[0]
    return [
        TokenLogprob(int(token_id), float(logprob))
        for token_id, logprob in zip(token_ids[1:], logprobs[1:], strict=True)
    ]


def _logprobs_only(output: EngineCoreOutput) -> EngineCoreOutput:
    return EngineCoreOutput("", [], output.new_logprobs, output.new_prompt_logprobs_tensors)


def _to_sources(stats: PrefillStats, takes_handoff: bool) -> PromptTokenSources:
    """vLLM counts as external what any connector loads. NIXL loads handoffs and nothing else; the tiers load the
    rest.
    """
    external = stats.num_external_cached_tokens
    return PromptTokenSources(
        computed=stats.num_computed_tokens,
        local=stats.num_local_cached_tokens,
        pulled=external if takes_handoff else 0,
        offloaded=0 if takes_handoff else external,
    )
