"""The oracle of the soak on real engines, which have its question cached."""

from typing import Any

import httpx
import pytest

from tests.drills.oracle import PATHS, computed_anew
from tests.drills.participants import MODEL
from tests.drills.processes import LiveProcesses
from tests.drills.questions import Question
from tests.drills.word_lists import word_list

pytestmark = pytest.mark.full_matrix

PROMPT_TOKENS = 150
NUM_ASKED_BEFORE = 5
"""One more than there are workers: the last one finds the prompt cached wherever it runs."""


@pytest.mark.parametrize("path", PATHS)
async def test_oracle_computes_what_the_service_has_cached(live: LiveProcesses, path: str) -> None:
    words = word_list(seed=90 + len(path), length=PROMPT_TOKENS)
    right = words.answer(PROMPT_TOKENS)
    body = {"model": MODEL, "temperature": 0, "prompt": words.prompt, "max_tokens": PROMPT_TOKENS, "ignore_eos": True}
    asked = Question("/v1/completions", body, lambda text: text == right)
    async with httpx.AsyncClient(base_url=live.service.url, timeout=60) as http:
        cached = [await _num_cached(http, asked) for _ in range(NUM_ASKED_BEFORE)]
        assert cached[-1] > 0
        assert await computed_anew(http, asked, path) == right


async def _num_cached(http: httpx.AsyncClient, asked: Question) -> int:
    """Prompt tokens that a client without a key finds in a cache."""
    response = await http.post(asked.path, json={**asked.body, "max_tokens": 1})
    answer: dict[str, Any] = response.raise_for_status().json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
