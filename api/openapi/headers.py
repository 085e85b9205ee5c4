"""The headers of answers, as the document describes them. Pure."""

from api.wire import response_headers as names

_LIMITS = "Of the limits per minute of the request, the one that has the least left"
HEADERS = {
    names.REQUEST_ID: "The id of the HTTP request.",
    names.ANTHROPIC_REQUEST_ID: "The same id, in answers of the Messages API.",
    names.PROCESSED_IN: "Time from the headers of the request to those of the answer, in milliseconds.",
    names.SERVICE: "The random name of the application that has answered.",
    names.TRACE_PARENT: "The place of the request in its trace (W3C Trace Context), if traces are exported.",
    names.RETRY_AFTER: "Time after which a refused request should be sent again, in seconds.",
    names.SHOULD_RETRY: "Whether a refused request should be sent again: true or false.",
    names.SAFETY_EVENT: "The id of the safety event that refused the request. An appeal names it.",
    names.PATH: "The path on which the request ran: P->D, D or P.",
    names.SLO: "The SLO class of the request with its TTFT and TPOT objectives.",
    names.PREDICTED: "The TTFT and TPOT that were predicted for the request.",
    names.SOURCES: "The sources of the prompt's KV blocks, in tokens.",
    names.IGNORED: "The types of the tools that the model was not given, because it is given functions only.",
    names.STALE: "The age of the copy that is the answer while PostgreSQL is away, in seconds.",
    names.LIMIT_REQUESTS: f"{_LIMITS}: the limit of requests.",
    names.LIMIT_TOKENS: f"{_LIMITS}: the limit of tokens.",
    names.REMAINING_REQUESTS: f"{_LIMITS}: the requests that are left.",
    names.REMAINING_TOKENS: f"{_LIMITS}: the tokens that are left.",
    names.RESET_REQUESTS: f"{_LIMITS}: the time until the requests are whole again, as 1s, 6m0s or 250ms.",
    names.RESET_TOKENS: f"{_LIMITS}: the time until the tokens are whole again, as 1s, 6m0s or 250ms.",
}
ON_ERRORS = (names.RETRY_AFTER, names.SHOULD_RETRY, names.SAFETY_EVENT)
ON_GENERATED = (names.PATH, names.SLO, names.PREDICTED, names.SOURCES, names.IGNORED)
ON_EVERY_ANSWER = tuple(name for name in HEADERS if name not in {*ON_ERRORS, *ON_GENERATED})
"""Headers that an answer of any route may have."""
