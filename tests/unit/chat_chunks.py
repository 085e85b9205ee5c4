"""The chunks of a streamed chat completion, as vLLM writes them."""

from typing import Any

Chunk = dict[str, Any]


def chunk(finish_reason: str | None = None, logprobs: Any = None, **delta: Any) -> Chunk:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def call(index: int, arguments: str = "", **first: Any) -> Chunk:
    """A piece of a tool call; its first has an id and a name."""
    function = {"arguments": arguments, **({"name": first["name"]} if first else {})}
    head = {"id": first["id"], "type": "function"} if first else {}
    return chunk(tool_calls=[{"index": index, "function": function, **head}])


def usage(num_prompt: int = 5, num_output: int = 2, num_cached: int = 0) -> Chunk:
    told = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": num_cached},
    }
    return {"id": "chatcmpl-1", "choices": [], "usage": told}


def answer(*texts: str, finish_reason: str = "stop") -> list[Chunk]:
    return [
        chunk(role="assistant", content=""),
        *(chunk(content=text) for text in texts),
        chunk(finish_reason),
        usage(),
    ]
