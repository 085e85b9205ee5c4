"""The library for each kind of constraint, in an engine.

llguidance handles JSON schemas, regular expressions, choices and grammars. It compiles little in advance, and has
limits for what one step may compute and for what it remembers (cluster/engine_core/guidance.py). xgrammar has no such
limits: with nine bytes of a regular expression it takes seconds per token. xgrammar handles structural tags, which
llguidance does not support. vLLM's tool parsers make them from the schemas of tools; costly keywords are dropped before
(cluster/engine_core/tag_schemas.py).
"""

import json
import threading
from typing import Any

import llguidance.torch as llguidance_torch
from vllm.config import VllmConfig
from vllm.v1.structured_output.backend_guidance import (
    GuidanceBackend,
    GuidanceGrammar,
    process_for_additional_properties,
)
from vllm.v1.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

from cluster.engine_core.guidance import matcher, serialized
from cluster.engine_core.tag_schemas import bounded_tag


class GrammarBackend(StructuredOutputBackend):
    """llguidance with limits, and xgrammar for structural tags. The thread that compiles makes each library's backend
    when it is first needed, which takes a second for a large vocabulary.
    """

    def __init__(self, vllm_config: VllmConfig, tokenizer: Any, vocab_size: int) -> None:
        # vLLM's StructuredOutputBackend.__init__ is not called: it would make the tokenizer of llguidance at once.
        self.vllm_config, self.tokenizer, self.vocab_size = vllm_config, tokenizer, vocab_size
        self._width = max(vocab_size, len(tokenizer))
        self._guidance: Any = None
        self._tags: Any = None
        self._making = threading.Lock()

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str, stop_token_ids: set[int] | None = None
    ) -> StructuredOutputGrammar:
        """Raises an Exception whose text describes the fault of the constraint."""
        if request_type is StructuredOutputOptions.STRUCTURAL_TAG:
            return self._for_tags().compile_grammar(request_type, bounded_tag(grammar_spec), stop_token_ids)
        guidance = self._for_others()
        if request_type is StructuredOutputOptions.JSON and guidance.disable_additional_properties:
            grammar_spec = json.dumps(process_for_additional_properties(grammar_spec))
        grammar = serialized(request_type.name.lower(), grammar_spec, not guidance.disable_any_whitespace)
        made = matcher(guidance.ll_tokenizer, grammar)
        return BoundedGrammar(made, guidance.ll_tokenizer, guidance.vocab_size)

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        return llguidance_torch.allocate_token_bitmask(max_num_seqs, self._width)

    def destroy(self) -> None:
        if self._tags is not None:
            self._tags.destroy()

    def _for_others(self) -> Any:
        with self._making:
            if self._guidance is None:
                self._guidance = GuidanceBackend(self.vllm_config, self.tokenizer, self.vocab_size)
            return self._guidance

    def _for_tags(self) -> Any:
        with self._making:
            if self._tags is None:
                # The rows of a mask are as wide for all requests of a batch.
                self._tags = XgrammarBackend(self.vllm_config, self.tokenizer, self._width)
            return self._tags


class BoundedGrammar(GuidanceGrammar):
    """A grammar with limits. Once it has passed a limit, it allows the end token alone, as if the answer were
    complete.
    """

    @property
    def is_broken(self) -> bool:
        return bool(self.ll_matcher.is_error())

    def check_error(self) -> None:
        """Log nothing, unlike vLLM's class: the request ends with an error of its own."""
