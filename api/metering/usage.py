"""The rows of the ledger for one request, made of its route receipt. Pure.

A request has a row for each attempt. Each row has two counts of generated tokens, which answer two questions:

- `generated_tokens` are those that the client was given. The client pays for these, once, whatever workers died.
- `worker_tokens` and `prefill_tokens` are those that reached the ingress from the engines of the attempt's workers.
  They are what the engines have counted, if the row is complete. They are more than `generated_tokens` where a token
  was computed twice: the first token of path P->D for a request that cannot go on after a token, the token of the check
  of a handoff, and the first token of an answer that was computed anew.

A row is not complete where an engine did not end by itself: its worker died, or the client left, or the request was
paused. Tokens that the engine generated after the last one that reached the ingress are in the engine's counter, unless
it died with it, and in no row. Nobody pays for them.

Who pays for the prompt: the first attempt that gave the client a token has it, once per request. If none did, and the
client left after the request was placed, or the request failed by the client's fault after its prompt was computed, the
last attempt has it: or else prompts could be computed for nothing. A request that was refused, or that failed otherwise
before its first token, costs nothing. A request that Baton made by itself, such as a title, has rows and costs nothing.

A request that was never placed has taken nothing from an engine and has no row, so that no client can fill the ledger
with requests that are refused.
"""

import re

import msgspec

from api.metering.prices import PricedTokens
from api.state.postgres.ledger.entries import Opening, UsageRow
from cluster.messages.ids import Outcome
from router.session.receipt import AttemptReceipt, RouteReceipt

MAX_TEXT_BYTES = 512
"""Bytes, as UTF-8, of a text that a client gives and that a row keeps. More lets a client store and publish more with
each row; fewer cuts longer names, which may then be equal.
"""
_UNSTORABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def storable(text: str) -> str:
    """A text of a client as a row keeps it: cut, and without what PostgreSQL refuses and what terminals obey. So no
    client can keep the rows of others from being written.
    """
    if text.isascii() and text.isprintable() and len(text) <= MAX_TEXT_BYTES:
        return text
    kept = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text[:MAX_TEXT_BYTES])
    return kept.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def rows_of(
    opening: Opening, receipt: RouteReceipt, priced: PricedTokens | None, reasoning_tokens: int
) -> list[UsageRow]:
    """The rows of a request that is closed; none if it was never placed. `priced`: None for a request that costs
    nothing. `reasoning_tokens`: of all attempts. They count as the first tokens of the answer: a model reasons before
    it answers.
    """
    payer = _payer_of_prompt(receipt)
    rows: list[UsageRow] = []
    has_first = False
    for attempt in receipt.attempts:
        reasoning = min(reasoning_tokens, attempt.num_delivered)
        reasoning_tokens -= reasoning
        prompt = receipt.num_prompt_tokens if attempt.number == payer else 0
        gives_first = attempt.num_delivered > 0 and not has_first
        has_first = has_first or gives_first
        row = UsageRow(
            id=opening.id,
            attempt=attempt.number,
            is_last=attempt.number == len(receipt.attempts),
            tenant_id=opening.tenant_id,
            project_id=opening.project_id,
            key_id=opening.key_id,
            end_user=opening.end_user,
            model=opening.model,
            request_id=opening.request_id,
            http_request=opening.http_request,
            slo_class=opening.slo_class,
            path=attempt.path,
            outcome=receipt.outcome,
            ending=attempt.end,
            prompt_tokens=prompt,
            cached_tokens=min(_cached(attempt), prompt),
            generated_tokens=attempt.num_delivered,
            reasoning_tokens=reasoning,
            worker=attempt.worker,
            worker_tokens=attempt.num_generated,
            prefill_worker=attempt.prefill_worker or "",
            prefill_tokens=attempt.num_prefill_generated,
            is_complete=attempt.is_complete,
            began_s=attempt.began_s,
            ttft_s=receipt.ttft_s if gives_first else None,
            duration_s=attempt.ended_s,
            price_version="",
            currency="",
            cost_micros=0,
        )
        rows.append(row if priced is None else _priced(row, priced))
    return rows


def _priced(row: UsageRow, priced: PricedTokens) -> UsageRow:
    cost = priced.prices.cost_micros(row.prompt_tokens, row.cached_tokens, row.generated_tokens, row.reasoning_tokens)
    return msgspec.structs.replace(row, price_version=priced.version, currency=priced.currency, cost_micros=cost)


def _payer_of_prompt(receipt: RouteReceipt) -> int | None:
    """The number of the attempt whose row has the prompt. None if the client does not pay for it."""
    for attempt in receipt.attempts:
        if attempt.num_delivered:
            return attempt.number
    is_paid = receipt.outcome is Outcome.ABORTED or receipt.is_owed
    return receipt.attempts[-1].number if receipt.attempts and is_paid else None


def _cached(attempt: AttemptReceipt) -> int:
    """Cached tokens of the prompt, as the client was told them."""
    sources = attempt.shown_sources or attempt.prefill_sources or attempt.sources
    return sources.cached if sources else 0
