"""Metrics of workers' engines that vLLM does not count."""

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

from cluster.messages.ids import Pool
from cluster.messages.reports import StepSample
from cluster.messages.retention import RetentionCounts
from cluster.metrics.buckets import STEP_BUCKETS_S, STEP_TOKEN_BUCKETS

PROMPT_TOKENS = Counter(
    "baton_prompt_tokens", "Prompt tokens that engines processed, by the source of their KV.", ["pool", "source"]
)
UNCLAIMED_TOKENS = Counter(
    "baton_unclaimed_tokens",
    "Tokens that this worker's engine has generated for no session, by why: warm-up, probe (of a link), or abandoned "
    "(the session has ended while its prompt was computed).",
    ["why"],
)
STEP = Histogram(
    "baton_engine_step_seconds",
    "Seconds of an engine's step, of the steps that are sampled: those that compute prompts (step prefill), at most 16 "
    "in a quarter of a second, and of those that only decode (step decode) one in 30 ms. So the number of observations "
    "is not the number of steps.",
    ["pool", "step"],
    buckets=STEP_BUCKETS_S,
)
STEP_TOKENS = Histogram(
    "baton_engine_step_tokens",
    "Tokens that a step has computed, of the same steps: tokens of prompts, and one for each request that decodes.",
    ["pool"],
    buckets=STEP_TOKEN_BUCKETS,
)
PREEMPTIONS = Counter(
    "baton_engine_preemptions",
    "Requests that an engine has put back into its queue because its KV cache was full. Their prompts and answers are "
    "computed anew.",
    ["pool"],
)

KEPT_BLOCKS = Gauge(
    "baton_kept_kv_blocks",
    "KV blocks that this worker's engine has and keeps for conversations that are likely to go on soon, in use or "
    "free. Kept blocks that it has taken for other prompts do not count.",
    ["pool"],
)
KEPT_HITS = Counter(
    "baton_kept_kv_block_hits",
    "Kept KV blocks that the next prompt of their conversation began with.",
    ["pool"],
)
KEPT_ENDS = Counter(
    "baton_kept_conversations",
    "Kept conversations by their outcome: returned; expired (not back in time); dropped (for others, because of "
    "kept_share); and late (back after they were expired or dropped, which counts beside that).",
    ["pool", "outcome"],
)
KEPT_LOSSES = Counter(
    "baton_kept_kv_blocks_given_up",
    "KV blocks by why they were given up: taken (kept, and needed by other requests when no others were free), or dead "
    "(of a state of a conversation that its next prompt did not have any more).",
    ["pool", "why"],
)


def observe_steps(pool: Pool, samples: Iterable[StepSample]) -> None:
    for sample in samples:
        STEP.labels(pool, "prefill" if sample.num_prefill else "decode").observe(sample.seconds)
        STEP_TOKENS.labels(pool).observe(sample.num_prefill + sample.num_decoding)


class RetentionMetrics:
    """Shows the counts of one engine. All but the kept blocks only grow."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shown = RetentionCounts()

    def show(self, counts: RetentionCounts) -> None:
        before, self._shown = self._shown, counts
        KEPT_BLOCKS.labels(self._pool).set(counts.kept_blocks)
        KEPT_HITS.labels(self._pool).inc(max(0, counts.hit_blocks - before.hit_blocks))
        for outcome in ("returned", "expired", "dropped", "late"):
            KEPT_ENDS.labels(self._pool, outcome).inc(max(0, getattr(counts, outcome) - getattr(before, outcome)))
        for why in ("taken", "dead"):
            grown = getattr(counts, f"{why}_blocks") - getattr(before, f"{why}_blocks")
            KEPT_LOSSES.labels(self._pool, why).inc(max(0, grown))
