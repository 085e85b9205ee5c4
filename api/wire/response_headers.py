"""The names of the headers of a response that clients may read, besides those of every HTTP answer."""

REQUEST_ID = "x-request-id"
"""The id of the HTTP request (api/edge/request_id.py)."""

PROCESSED_IN = "openai-processing-ms"
"""Time from the headers of the request to those of the answer, in whole milliseconds. Every answer has it, as
OpenAI's.
"""

ANTHROPIC_REQUEST_ID = "request-id"
"""The same id, where Anthropic's clients look for it. Answers of the Messages API have it."""

TRACE_PARENT = "traceparent"
"""The place of the request in its trace (W3C Trace Context). Answers have it if traces are exported."""

RETRY_AFTER = "retry-after"
"""Time after which the client should send a refused request again, in seconds."""

SHOULD_RETRY = "x-should-retry"
"""Whether the client should send a refused request again: `true` or `false`. OpenAI's clients obey it, whatever the
status says.
"""

SAFETY_EVENT = "x-safety-event-id"
"""The id of the safety event that refused the request. An appeal names it."""

PATH = "x-baton-path"
"""The path on which the request ran. In a request, the path on which the request must run, if
`ingress.allow_path_header` permits the header.
"""

SLO = "x-baton-slo"
"""The SLO class of the request with its TTFT and TPOT objectives."""

PREDICTED = "x-baton-predicted"
"""The TTFT and TPOT that the Scheduler predicted for the placement."""

SOURCES = "x-baton-prompt-tokens"
"""The sources of the prompt's KV blocks on the worker that generated the first token: the number of prompt tokens that
the worker computed, and the number that the worker found in each source.
"""

IGNORED = "x-baton-ignored"
"""What of the request the model is not given: the types of its tools that are no functions."""

STALE = "x-baton-stale"
"""In a stale read, the age of the copy, in seconds."""

SERVICE = "x-baton-service"
"""The random name of the application that the ingress replica is of. Every answer has it."""

LIMIT_REQUESTS, LIMIT_TOKENS = "x-ratelimit-limit-requests", "x-ratelimit-limit-tokens"
REMAINING_REQUESTS, REMAINING_TOKENS = "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"
RESET_REQUESTS, RESET_TOKENS = "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens"
"""Of the limits per minute of the request, the one that has the least left: the limit, what is left of it, and the time
until it is whole again, as "1s", "6m0s" or "250ms".
"""

_RATE_LIMITS = (LIMIT_REQUESTS, LIMIT_TOKENS, REMAINING_REQUESTS, REMAINING_TOKENS, RESET_REQUESTS, RESET_TOKENS)
EXPOSED = (
    *(REQUEST_ID, ANTHROPIC_REQUEST_ID, PROCESSED_IN, TRACE_PARENT, RETRY_AFTER, SHOULD_RETRY, SAFETY_EVENT),
    *(PATH, SLO, PREDICTED, SOURCES, IGNORED, STALE, SERVICE),
    *_RATE_LIMITS,
)
"""All of them. Pages of listed origins may read them."""
