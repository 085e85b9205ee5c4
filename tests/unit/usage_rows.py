"""Openings and rows of the ledger with defaults, so that a test names only what it is about."""

from itertools import count
from typing import Any

from api.state.postgres.ledger.entries import Opening, UsageRow, entry_id
from cluster.messages.ids import Path, WorkerId
from router.session.receipt import AttemptEnd, AttemptReceipt

TENANT = "0123456789abcdef"
JUNE_MS = 1_780_300_000_000
"""A moment on 1 June 2026, in milliseconds of Unix time."""

_numbers = count(1)


def an_id(at_ms: int = JUNE_MS) -> str:
    """Each is a new one."""
    return entry_id(at_ms, next(_numbers).to_bytes(10, "big"))


def an_opening(at_ms: int = JUNE_MS, **fields: Any) -> Opening:
    defaults: dict[str, Any] = {
        "id": an_id(at_ms),
        "tenant_id": TENANT,
        "project_id": "proj_0000000000000001",
        "key_id": "key_0000000000000001",
        "model": "baton-demo",
        "request_id": "r",
        "http_request": "req_1",
        "slo_class": "standard",
        "prompt_tokens": 10,
        "ingress": "i0",
    }
    return Opening(**(defaults | fields))


def a_row(at_ms: int = JUNE_MS, **fields: Any) -> UsageRow:
    defaults: dict[str, Any] = {
        "id": an_id(at_ms),
        "attempt": 1,
        "is_last": True,
        "tenant_id": TENANT,
        "project_id": "proj_0000000000000001",
        "key_id": "key_0000000000000001",
        "end_user": "",
        "model": "baton-demo",
        "request_id": "r",
        "http_request": "req_1",
        "slo_class": "standard",
        "path": "D",
        "outcome": "finished",
        "ending": "finished",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "generated_tokens": 5,
        "reasoning_tokens": 0,
        "worker": "d0",
        "worker_tokens": 5,
        "prefill_worker": "",
        "prefill_tokens": 0,
        "is_complete": True,
        "began_s": 0.01,
        "ttft_s": 0.1,
        "duration_s": 0.5,
        "price_version": "v1",
        "currency": "usd",
        "cost_micros": 7,
    }
    return UsageRow(**(defaults | fields))


def an_attempt(number: int = 1, **fields: Any) -> AttemptReceipt:
    defaults: dict[str, Any] = {
        "path": Path.DECODE,
        "worker": WorkerId("d0"),
        "prefill_worker": None,
        "end": AttemptEnd.FINISHED,
        "num_prompt_tokens": 4,
        "num_delivered": 3,
        "num_generated": 3,
        "num_prefill_generated": 0,
        "is_complete": True,
        "prefill_sources": None,
        "sources": None,
        "shown_sources": None,
        "began_s": 0.1,
        "ended_s": 0.9,
    }
    return AttemptReceipt(number=number, **(defaults | fields))
