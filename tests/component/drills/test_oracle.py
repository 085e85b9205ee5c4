"""The oracle of the soak takes no text for the model's own that may come from a cache."""

import json
import random
from typing import Any

import httpx
import pytest

from tests.drills.oracle import computed_anew, says_the_model_itself
from tests.drills.questions import question

ASKED = question("any", random.Random(1))
TEXT = "the model's own"
COMPUTED = {"prompt_tokens": 70, "prompt_tokens_details": {"cached_tokens": 0}}


class Service:
    def __init__(self, usage: dict[str, Any], says: dict[str, str]) -> None:
        """`says`: the text of each path."""
        self.keys: list[str] = []
        self._usage = usage
        self._says = says

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://service", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["stream"] is False
        self.keys.append(request.headers["authorization"])
        path = request.headers["x-baton-path"]
        content = {"choices": [{"message": {"content": self._says[path]}}], "usage": self._usage}
        return httpx.Response(200, json=content, headers={"x-baton-path": path})


async def test_each_question_is_asked_with_a_key_of_its_own() -> None:
    service = Service(COMPUTED, {"D": "another", "P->D": "another"})
    async with service.client() as http:
        assert not await says_the_model_itself(http, ASKED, TEXT)
        assert not await says_the_model_itself(http, ASKED, TEXT)
    assert len(set(service.keys)) == len(service.keys) == 4


@pytest.mark.parametrize("right", ["D", "P->D"])
async def test_text_of_either_path_is_the_model_s_own(right: str) -> None:
    service = Service(COMPUTED, {"D": "another", "P->D": "another", right: TEXT})
    async with service.client() as http:
        assert await says_the_model_itself(http, ASKED, TEXT)


@pytest.mark.parametrize("details", [{"cached_tokens": 32}, {}, None])
async def test_answer_that_may_come_from_a_cache_is_no_oracle(details: dict[str, int] | None) -> None:
    service = Service({"prompt_tokens": 70, "prompt_tokens_details": details}, {"D": TEXT})
    async with service.client() as http:
        with pytest.raises(AssertionError, match="of 70 prompt tokens came from a cache"):
            await computed_anew(http, ASKED, "D")
