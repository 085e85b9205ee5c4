"""Metrics of workers' engines that vLLM does not count."""

from prometheus_client import Counter

PROMPT_TOKENS = Counter(
    "baton_prompt_tokens", "Prompt tokens that engines processed, by the source of their KV.", ["pool", "source"]
)
UNCLAIMED_TOKENS = Counter(
    "baton_unclaimed_tokens",
    "Tokens that this worker's engine has generated for no session, by why: warm-up, probe (of a link), or abandoned "
    "(the session has ended while its prompt was computed).",
    ["why"],
)
