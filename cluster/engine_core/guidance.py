"""How constraints are passed to llguidance, and its limits. The engines use it, and so does the ingress, which tries
each constraint before it reaches an engine (api/structured/trial.py).
"""

from typing import Any

import llguidance

STEP_MAX_ITEMS = 10_000
"""Items of the parser while it finds the tokens that a step allows. More lets ambiguous grammars make steps slower;
fewer ends the requests of schemas with more than some 500 optional properties in one object.
"""
STEP_LEXER_FUEL = 100_000
"""Fuel of the lexer in a step: about 7 ms. More makes the slowest step slower; less ends the requests of regular
expressions with many nested repetitions.
"""
MAX_LEXER_STATES = 30_000
"""Lexer states of one request, about 0.5 kB each. More lets a request take more of the engine's memory; fewer ends the
requests of regular expressions with long answers whose parts can only be distinguished late.
"""


def limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        step_max_items=STEP_MAX_ITEMS,
        step_lexer_fuel=STEP_LEXER_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )


def serialized(kind: str, spec: str, is_spaced: bool = True) -> str:
    """A constraint in the form of llguidance. `kind`: vLLM's name of the kind, in lower case.

    JSON is on one line; with `is_spaced`, a space follows each comma and colon. With free whitespace, a small model
    writes spaces until its tokens are used up. Keywords of schemas that llguidance does not know are not enforced, and
    `oneOf` means `anyOf`: clients know both from other servers.

    Raises ValueError.
    """
    if kind in ("json", "json_object"):
        schema = spec if kind == "json" else '{"type": "object"}'
        space = " " if is_spaced else ""
        defaults: Any = {
            "whitespace_flexible": False,
            "item_separator": f",{space}",
            "key_separator": f":{space}",
            "lenient": True,
            "coerce_one_of": True,
        }
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=defaults))
    format_name: Any = kind
    return str(llguidance.grammar_from(format_name, spec))


def matcher(tokenizer: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
    """Raises ValueError whose text describes the fault of the constraint."""
    made = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if error := made.get_error():
        raise ValueError(error.split("\n")[0])
    return made
