"""The chat format: special tokens, the ChatML template, and its twin in Python that marks what the model learns."""

import json
from typing import Any

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
TOOL_TOKENS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

Message = dict[str, Any]
Segment = tuple[str, bool]  # a piece of text, and whether the model is trained to write it

TOOLS_HEAD = "# Tools\n\nYou may call one of these functions:\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call a function, answer with\n<tool_call>\n"
    '{"name": <function name>, "arguments": <JSON object>}\n</tool_call>'
)

CHAT_TEMPLATE = (
    """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + (system + '\\n\\n' if system else '') + """
    + json.dumps(TOOLS_HEAD)
    + """ }}
    {%- for tool in tools %}
        {%- set function = tool.function if tool.function is defined else tool %}
        {{- '\\n{"name": ' + (function.name | tojson) }}
        {{- ', "description": ' + ((function.description or '') | tojson) }}
        {{- ', "parameters": ' + ((function.parameters or {}) | tojson) + '}' }}
    {%- endfor %}
    {{- """
    + json.dumps(TOOLS_TAIL)
    + """ + '<|im_end|>\\n' }}
{%- elif system %}
    {{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function is defined else call %}
            {{- ('\\n' if message.content or not loop.first else '') + '<tool_call>\\n{"name": ' }}
            {{- (call.name | tojson) + ', "arguments": ' }}
            {{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' }}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tool_call_text(name: str, arguments: dict[str, Any]) -> str:
    return '<tool_call>\n{"name": ' + _json(name) + ', "arguments": ' + _json(arguments) + "}\n</tool_call>"


def _tool_text(tool: dict[str, Any]) -> str:
    function = tool["function"]
    return _json({key: function[key] for key in ("name", "description", "parameters")})


def _system_text(system: str, tools: list[dict[str, Any]]) -> str:
    if not tools:
        return system
    head = f"{system}\n\n" if system else ""
    return head + TOOLS_HEAD + "".join("\n" + _tool_text(tool) for tool in tools) + TOOLS_TAIL


def _message_segments(message: Message) -> list[Segment]:
    if message["role"] == "tool":
        body = f"\n<tool_response>\n{message['content']}\n</tool_response>"
        return [(f"{TURN_START}user{body}{TURN_END}\n", False)]
    if message["role"] != "assistant":
        return [(f"{TURN_START}{message['role']}\n{message['content']}{TURN_END}\n", False)]
    calls = [tool_call_text(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    body = "\n".join(([message["content"]] if message.get("content") else []) + calls)
    return [(f"{TURN_START}assistant\n", False), (body + TURN_END, True), ("\n", False)]


def segments(messages: list[Message], tools: list[dict[str, Any]] | None = None) -> list[Segment]:
    """What the chat template writes for these messages, with the assistant's words marked as learnt."""
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    text = _system_text(system, tools or [])
    result: list[Segment] = [(f"{TURN_START}system\n{text}{TURN_END}\n", False)] if text else []
    for message in messages[1:] if system else messages:
        result += _message_segments(message)
    return result
