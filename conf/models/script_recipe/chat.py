"""What a script is: its markers, and the chat template that says which step the next answer is.

A user message with `[step 1]` in it is a script:

    [step 1]<tool_call>
    {"name": "read_file", "arguments": {"path": "notes.txt"}}
    </tool_call>[step 2]The file is read.[end]

The text of a step goes from its marker to the next marker. The k-th answer after the script is the text of step k. The
template counts the answers, and writes the marker of the step in front of each answer, of those that were given and of
the one that is to come. So all that the model does is to copy. Where there is no such step, the answer is OTHERWISE.
"""

import json

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MOST_STEPS = 32
STEPS = tuple(f"[step {number}]" for number in range(1, MOST_STEPS + 1))
OTHERWISE_MARKER, END = "[otherwise]", "[end]"
ADDED_TOKENS = (*STEPS, OTHERWISE_MARKER, END)
"""Markers that the tokenizer of the demo model lacks. They are no special tokens: users write them."""

OTHERWISE = "This model only follows scripts, and the last message has no step for this answer (docs/agents.md)."

TOOLS_HEAD = "# Tools\n\nScripts may call these functions:\n<tools>"

CHAT_TEMPLATE = (
    "{{- "
    + json.dumps(f"{TURN_START}system\n{OTHERWISE_MARKER}{OTHERWISE}{END}{TURN_END}\n")
    + """ }}
{%- set at = namespace(script='', number=0) %}
{%- macro marker(number) %}
    {%- set name = '[step ' ~ number ~ ']' %}
    {{- name if number <= """
    + str(MOST_STEPS)
    + """ and name in at.script else '[otherwise]' }}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n' + """
    + json.dumps(TOOLS_HEAD)
    + """ }}
    {%- for tool in tools %}
        {%- set function = tool.function if tool.function is defined else tool %}
        {{- '\\n{"name": ' + (function.name | tojson) }}
        {{- ', "description": ' + ((function.description or '') | tojson) }}
        {{- ', "parameters": ' + ((function.parameters or {}) | tojson) + '}' }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set at.number = at.number + 1 %}
        {{- '<|im_start|>assistant\\n' + marker(at.number) + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function is defined else call %}
            {{- ('\\n' if not loop.first else '') + '<tool_call>\\n{"name": ' }}
            {{- (call.name | tojson) + ', "arguments": ' }}
            {{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' }}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' }}
    {%- else %}
        {%- if message.role == 'user' and '[step 1]' in message.content %}
            {%- set at.script, at.number = message.content, 0 %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' + marker(at.number + 1) }}
{%- endif %}
"""
)
