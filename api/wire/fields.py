"""The fields of a request body that clients may set. vLLM's request models define the fields that exist. This module
lists the fields that Baton refuses or ignores.
"""

from typing import Any

from cluster.errors import InvalidRequest

PRIVILEGED = frozenset(
    {
        "kv_transfer_params",
        "ec_transfer_params",
        "priority",
        "cache_salt",
        "chat_template",
        "request_id",
        "vllm_xargs",
        "mm_processor_kwargs",
        "media_io_kwargs",
        "mm_payload",
        "return_mm_kwargs",
        "prompt_embeds",
        "routed_experts_prompt_start",
        "watermarking",
        "logits_processors",
    }
)
"""Fields that reach into the engines, into the KV of further requests or into the chat template. Only the cluster sets
them.
"""

WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""OpenAI's fields that do not change how vLLM answers. They are accepted because common clients send them, and removed
before vLLM reads the body.
"""

UNSUPPORTED = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "prediction",
        "use_beam_search",
        "web_search_options",
    }
)
"""OpenAI's fields that would change the answer and that Baton does not support. They are refused, not ignored."""


ONLY: dict[str, Any] = {"modalities": ["text"], "verbosity": "medium"}
"""OpenAI's fields for which Baton supports only the default value."""


def check_fields(body: Any, known: frozenset[str]) -> dict[str, Any]:
    """The body without null fields, and without those of WITHOUT_EFFECT and ONLY. `known` are the fields of vLLM's
    request model.

    Raises:
        InvalidRequest: the body is not an object, or a field of it is privileged, unsupported or unknown.
    """
    if not isinstance(body, dict):
        raise InvalidRequest("the request body must be a JSON object", None, "invalid_type")
    present = {name: value for name, value in body.items() if value is not None and name not in WITHOUT_EFFECT}
    for name in present:
        if name in PRIVILEGED:
            raise InvalidRequest(f"'{name}' cannot be set by clients", name, "unsupported_parameter")
        if name in UNSUPPORTED:
            raise InvalidRequest(f"'{name}' is not supported", name, "unsupported_parameter")
        if name in ONLY and present[name] != ONLY[name]:
            raise InvalidRequest(f"{name} must be {ONLY[name]!r}", name, "unsupported_value")
        if name not in known and name not in ONLY:
            raise InvalidRequest(f"unknown parameter: '{name}'", name, "unknown_parameter")
    for name in ONLY:
        present.pop(name, None)
    _check_template_kwargs(present.get("chat_template_kwargs"))
    _check_tool_choice(present.get("tool_choice"))
    return present


def _check_template_kwargs(kwargs: Any) -> None:
    if isinstance(kwargs, dict) and "chat_template" in kwargs:
        raise InvalidRequest(
            "'chat_template' cannot be set by clients", "chat_template_kwargs.chat_template", "unsupported_parameter"
        )


def _check_tool_choice(choice: Any) -> None:
    if isinstance(choice, dict) and choice.get("type", "function") != "function":
        raise InvalidRequest(
            "tool_choice must be 'none', 'auto', 'required' or a function", "tool_choice", "unsupported_value"
        )
