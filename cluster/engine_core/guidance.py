"""How constraints are given to llguidance, and its limits: in the engines, and where constraints are tried before they
reach them (api/structured/trial.py).
"""

from typing import Any

import llguidance

STEP_MAX_ITEMS = 10_000
"""Of the parser, while it finds the tokens that a step allows. More lets ambiguous grammars make steps slower, fewer
ends the requests of schemas with more than some 500 optional properties in one object.
"""
STEP_LEXER_FUEL = 100_000
"""Of the lexer, in a step: about 7 ms. More makes the slowest step slower, less ends the requests of regular
expressions with many repetitions within each other.
"""
MAX_LEXER_STATES = 30_000
"""Of one request, about 0.5 kB each. More lets a request take more of the engine's memory, fewer ends the requests of
regular expressions whose answers are long and whose parts can be told apart late.
"""


def limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        step_max_items=STEP_MAX_ITEMS,
        step_lexer_fuel=STEP_LEXER_FUEL,
        max_lexer_states=MAX_LEXER_STATES,
        verbose_errors=False,
    )


def serialized(kind: str, spec: str, is_spaced: bool = True) -> str:
    """A constraint in the form of llguidance. `kind`: as vLLM names it in lower case.

    JSON is on one line, `is_spaced`: with a space after each comma and colon. Where whitespace is free, a small model
    writes spaces until its tokens are used up. Keywords of schemas that llguidance does not know are not enforced, and
    `oneOf` is as `anyOf`: both are what clients have of other servers.

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
    """Raises ValueError that says what is wrong with the constraint."""
    made = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    if error := made.get_error():
        raise ValueError(error.split("\n")[0])
    return made
