"""Whether an engine can follow tools and a JSON schema in one request, decided without compiling the schema.

If a model may either call tools or answer by a schema, vLLM (`_xgrammar_supports`) compiles the schema with xgrammar on
the event loop, only to learn whether xgrammar supports it. That takes seconds for some schemas within all bounds
(`pattern: a{10000}`). The constraint that vLLM makes of the tools and the schema is compiled in a separate process in
any case (api/structured/compilers.py). There a costly schema ends only its own request.
"""

import json

from vllm.exceptions import VLLMValidationError
from vllm.parser import abstract_parser
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features


def judge_by_keywords() -> None:
    """Replaces vLLM's check for all parsers of this process. A second call has no effect."""
    abstract_parser._xgrammar_supports = may_be_followed


def may_be_followed(outputs: StructuredOutputsParams) -> bool:
    """Whether a request with tools may have this schema, too. False for a schema with a keyword that xgrammar does not
    know. Then vLLM enforces the schema of the answer, and not the schemas of the tools.
    """
    schema = outputs.json
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        return not isinstance(schema, dict) or not has_xgrammar_unsupported_json_features(schema)
    except (ValueError, VLLMValidationError):
        return False
