"""What the model says to a question when it computes the whole prompt anew. The question was asked before, so its KV
blocks are cached, and they are what is doubted: the oracle asks with a fresh API key, which finds none of them.
"""

import logging
from typing import Any

import httpx

from tests.drills.questions import Question
from tests.real_cluster.fresh_key import bearer, fresh_key, require_computed_anew

logger = logging.getLogger("baton.soak")

PATHS = ("D", "P->D")
"""Each may round another way, and a text that either gives is no error of the service."""


async def says_the_model_itself(http: httpx.AsyncClient, asked: Question, text: str) -> bool:
    """Whether the model gives this text on one of the paths. Raises AssertionError as `computed_anew` does."""
    for path in PATHS:
        undisturbed = await computed_anew(http, asked, path)
        if undisturbed == text:
            return True
    logger.error("answered %r, undisturbed %r, asked %s", text, undisturbed, asked.body)
    return False


async def computed_anew(http: httpx.AsyncClient, asked: Question, path: str) -> str:
    """The text that the model gives on this path.

    Raises:
        AssertionError: it ran on another path, or a part of the prompt came from a cache.
    """
    body = {**asked.body, "stream": False}
    response = await http.post(asked.path, json=body, headers={"x-baton-path": path, **bearer(fresh_key())})
    answer = response.raise_for_status().json()
    assert response.headers["x-baton-path"] == path
    require_computed_anew(answer["usage"])
    return text_of(answer)


def text_of(answer: dict[str, Any]) -> str:
    """Of a whole answer or of a chunk, of a chat or of a completion."""
    (choice,) = answer["choices"]
    message = choice.get("message") or choice.get("delta")
    return str((message or {}).get("content") or "") if "text" not in choice else str(choice["text"])
