"""The library behind each kind of constraint, the same in the engines and in the processes that try constraints first.

JSON schemas, regular expressions, choices and grammars are llguidance's: it compiles little in advance, and has limits
for what one step may compute and for what it remembers. xgrammar has none: nine bytes of a regular expression make it
take seconds per token. It is kept for structural tags, which llguidance does not know: vLLM's tool parsers make
them from the schemas of tools, and what is costly in those is dropped before (cluster/engine_core/tag_schemas.py).
"""

import threading
from typing import Any

import llguidance
from vllm.v1.structured_output.backend_guidance import GuidanceBackend, GuidanceGrammar, serialize_guidance_grammar
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar, StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

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


class GrammarBackend(GuidanceBackend):
    """vLLM's backend for llguidance, with limits; for structural tags its backend for xgrammar."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._limits = llguidance.LLParserLimits(
            step_max_items=STEP_MAX_ITEMS,
            step_lexer_fuel=STEP_LEXER_FUEL,
            max_lexer_states=MAX_LEXER_STATES,
            verbose_errors=False,
        )
        self._tags: Any = None
        self._making_tags = threading.Lock()

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> StructuredOutputGrammar:
        """Raises an Exception that says what is wrong with the constraint."""
        if request_type is StructuredOutputOptions.STRUCTURAL_TAG:
            return self._for_tags().compile_grammar(request_type, grammar_spec, stop_token_ids)
        serialized = serialize_guidance_grammar(
            request_type, grammar_spec, self.disable_any_whitespace, self.disable_additional_properties
        )
        matcher = llguidance.LLMatcher(self.ll_tokenizer, serialized, log_level=0, limits=self._limits)
        if error := matcher.get_error():
            raise ValueError(error)
        return BoundedGrammar(matcher, self.ll_tokenizer, self.vocab_size)

    def destroy(self) -> None:
        super().destroy()
        if self._tags is not None:
            self._tags.destroy()

    def _for_tags(self) -> Any:
        """Made when it is needed: it takes a second for a large vocabulary."""
        with self._making_tags:
            if self._tags is None:
                # The rows of a mask are as wide for all requests of a batch.
                self._tags = XgrammarBackend(self.vllm_config, self.tokenizer, self.ll_tokenizer.vocab_size)
            return self._tags


class BoundedGrammar(GuidanceGrammar):
    """One that can have passed a limit: it then allows the end token alone, as if the answer were complete."""

    @property
    def is_broken(self) -> bool:
        return bool(self.ll_matcher.is_error())

    @property
    def warnings(self) -> list[str]:
        """What of the constraint is not enforced."""
        return list(self.ll_matcher.get_grammar_warnings())
