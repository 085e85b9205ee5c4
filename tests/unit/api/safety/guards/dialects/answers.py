"""Answers of guards, as their endpoints give them."""

import json
import math
from typing import Any

from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ANYTHING = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode())
"""What an endpoint may send instead of an answer."""
BROKEN_BODIES = (b"", b"\xff\xfe", b"{", b"[]", b"null", b'{"choices": []}', b"[" * 60_000, b'{"error": {}}')


def a_chat(content: Any, tokens: list[Any] | None = None) -> bytes:
    """`tokens`: of the log probabilities."""
    logprobs = None if tokens is None else {"content": tokens}
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "logprobs": logprobs}
    return json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice]}).encode()


def a_token(probabilities: dict[str, float], said: str | None = None) -> dict[str, Any]:
    """A token of the log probabilities: the most likely one is said."""
    top = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in probabilities.items()]
    chosen = max(probabilities, key=probabilities.__getitem__) if said is None else said
    return {"token": chosen, "logprob": math.log(probabilities.get(chosen, 1.0)), "top_logprobs": top}
