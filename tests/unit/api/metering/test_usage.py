"""Rows of a request: what its client pays for, and what engines have counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.metering.prices import PricedTokens, TokenPrices
from api.metering.usage import rows_of, storable
from api.state.postgres.ledger.entries import arrival_ms, entry_id
from cluster.messages.generation import PromptTokenSources
from cluster.messages.ids import Outcome, Path, WorkerId
from router.session.receipt import AttemptEnd, AttemptReceipt
from tests.unit.factories import a_receipt
from tests.unit.usage_rows import an_attempt, an_opening

PRICED = PricedTokens(
    "v1", "usd", TokenPrices(of_input=1_000_000, of_cached=0, of_output=2_000_000, of_reasoning=3_000_000)
)


def a_closed(*attempts: AttemptReceipt, **fields: Any) -> Any:
    return a_receipt(attempts=attempts, num_output_tokens=sum(one.num_delivered for one in attempts), **fields)


def test_client_pays_the_prompt_once_and_each_token_that_it_was_given() -> None:
    died = an_attempt(1, end=AttemptEnd.FAILED, num_delivered=2, num_generated=2, is_complete=False)
    other = an_attempt(2, worker=WorkerId("d1"), num_prompt_tokens=6, num_delivered=1, num_generated=1)
    first, second = rows_of(an_opening(), a_closed(died, other), PRICED, 0)
    assert (first.prompt_tokens, first.generated_tokens, first.ending, first.cost_micros) == (4, 2, "failed", 4 + 4)
    assert (second.prompt_tokens, second.generated_tokens, second.ending, second.cost_micros) == (0, 1, "finished", 2)
    assert (first.is_last, second.is_last, first.outcome) == (False, True, "finished")
    assert (first.is_complete, second.is_complete) == (False, True)
    assert (first.ttft_s, second.ttft_s) == (0.5, None)


def test_first_token_that_two_engines_computed_is_paid_once_and_counted_twice() -> None:
    handed_over = an_attempt(path=Path.PREFILL_DECODE, prefill_worker=WorkerId("p0"), num_prefill_generated=1)
    (row,) = rows_of(an_opening(), a_closed(handed_over), PRICED, 0)
    assert (row.generated_tokens, row.worker_tokens, row.prefill_tokens) == (3, 3, 1)
    assert (row.worker, row.prefill_worker) == ("d0", "p0")


def test_cached_tokens_are_those_that_the_client_was_told() -> None:
    shown = PromptTokenSources(1, 3, 0)
    (row,) = rows_of(
        an_opening(), a_closed(an_attempt(shown_sources=shown, sources=PromptTokenSources(0, 0, 4))), PRICED, 0
    )
    assert (row.cached_tokens, row.cost_micros) == (3, 1 + 6)


def test_reasoning_tokens_are_the_first_ones() -> None:
    two = (an_attempt(1, num_delivered=2, end=AttemptEnd.PAUSED), an_attempt(2, num_delivered=3))
    rows = rows_of(an_opening(), a_closed(*two), PRICED, reasoning_tokens=3)
    assert [row.reasoning_tokens for row in rows] == [2, 1]
    assert [row.cost_micros for row in rows] == [4 + 6, 3 + 4]


def test_prompts_are_not_computed_for_nothing_for_a_client_that_leaves() -> None:
    nothing = an_attempt(num_delivered=0, num_generated=0, end=AttemptEnd.ABORTED)
    (row,) = rows_of(an_opening(), a_closed(nothing, outcome=Outcome.ABORTED, ttft_s=None), PRICED, 0)
    assert (row.prompt_tokens, row.cost_micros, row.ttft_s) == (4, 4, None)


def test_request_that_failed_before_its_first_token_costs_nothing() -> None:
    nothing = an_attempt(num_delivered=0, num_generated=0, end=AttemptEnd.FAILED)
    (row,) = rows_of(an_opening(), a_closed(nothing, outcome=Outcome.FAILED, ttft_s=None), PRICED, 0)
    assert (row.prompt_tokens, row.cost_micros) == (0, 0)


def test_prompts_are_not_computed_for_nothing_for_what_fails_by_its_clients_fault() -> None:
    computed = an_attempt(num_delivered=0, num_generated=0, num_prefill_generated=1, end=AttemptEnd.FAILED)
    receipt = a_closed(computed, outcome=Outcome.FAILED, ttft_s=None, is_owed=True)
    (row,) = rows_of(an_opening(), receipt, PRICED, 0)
    assert (row.prompt_tokens, row.cost_micros, row.outcome) == (4, 4, "failed")


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.FAILED, Outcome.ABORTED])
def test_request_that_was_never_placed_has_no_row(outcome: Outcome) -> None:
    assert rows_of(an_opening(), a_closed(outcome=outcome), PRICED, 0) == []


def test_row_has_who_asked_and_when() -> None:
    opening = an_opening(end_user="u", model="m")
    (row,) = rows_of(opening, a_closed(an_attempt()), None, 0)
    assert (row.id, row.tenant_id, row.project_id, row.key_id) == (
        opening.id,
        opening.tenant_id,
        opening.project_id,
        opening.key_id,
    )
    assert (row.end_user, row.model, row.http_request, row.cost_micros) == ("u", "m", "req_1", 0)


outcomes = st.sampled_from(Outcome)
attempts = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=5).map(
    lambda all_of: [
        an_attempt(
            number,
            num_delivered=delivered,
            num_generated=delivered + beyond,
            is_complete=is_complete,
            shown_sources=PromptTokenSources(1, 3, 0),
        )
        for number, (delivered, beyond, is_complete) in enumerate(all_of, 1)
    ]
)


@given(attempts, outcomes, st.integers(0, 300))
def test_sums_over_the_rows_of_a_request_are_those_of_the_request(
    given_attempts: list[AttemptReceipt], outcome: Outcome, reasoning: int
) -> None:
    receipt = a_closed(*given_attempts, outcome=outcome)
    rows = rows_of(an_opening(), receipt, PRICED, reasoning)
    assert sum(row.generated_tokens for row in rows) == receipt.num_output_tokens
    assert sum(row.reasoning_tokens for row in rows) == min(reasoning, receipt.num_output_tokens)
    assert sum(row.prompt_tokens for row in rows) in (0, receipt.num_prompt_tokens)
    assert sum(row.worker_tokens for row in rows) == sum(one.num_generated for one in given_attempts)
    assert [row.is_last for row in rows] == [number == len(rows) for number in range(1, len(rows) + 1)]
    assert all(0 <= row.cached_tokens <= row.prompt_tokens for row in rows)
    assert all(0 <= row.reasoning_tokens <= row.generated_tokens for row in rows)


@given(st.text())
def test_text_of_a_client_can_be_stored_and_printed(text: str) -> None:
    kept = storable(text + "\0\x1b[31m\ud800")
    kept.encode()
    assert kept.isprintable() or not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in kept)
    assert len(kept.encode()) <= 512


def test_text_of_a_client_is_cut_between_two_characters() -> None:
    assert storable("a" + "\N{EARTH GLOBE EUROPE-AFRICA}" * 512) == "a" + "\N{EARTH GLOBE EUROPE-AFRICA}" * 127
    assert storable("e" * 600) == "e" * 512


@given(st.integers(0, (1 << 48) - 1), st.binary(min_size=10, max_size=10))
def test_id_of_an_entry_has_its_time(at_ms: int, chance: bytes) -> None:
    made = entry_id(at_ms, chance)
    assert arrival_ms(made) == at_ms
    assert (made[14], made[19] in "89ab", len(made)) == ("7", True, 36)
