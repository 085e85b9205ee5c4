"""Metrics of workers' engines that vLLM does not count."""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram

from cluster.messages.ids import Pool
from cluster.messages.reports import StepSample
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


def observe_steps(pool: Pool, samples: Iterable[StepSample]) -> None:
    for sample in samples:
        STEP.labels(pool, "prefill" if sample.num_prefill else "decode").observe(sample.seconds)
        STEP_TOKENS.labels(pool).observe(sample.num_prefill + sample.num_decoding)
