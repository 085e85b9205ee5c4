"""Whether tools and another constraint can be followed together, without compiling the constraint to find out.

Where a model may call tools or else has to keep to a schema, vLLM asks xgrammar for the schema's grammar first, on the
event loop, only to know whether there is one. That takes seconds for some schemas that are within all bounds
(`pattern: a{10000}`). What vLLM makes of both is compiled in a process of its own in any case
(api/structured/compilers.py), where such a schema ends its own request.
"""

import json

from vllm.exceptions import VLLMValidationError
from vllm.parser import abstract_parser
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import has_xgrammar_unsupported_json_features


def judge_by_keywords() -> None:
    """For all parsers of this process. May be called again."""
    abstract_parser._xgrammar_supports = may_be_followed


def may_be_followed(outputs: StructuredOutputsParams) -> bool:
    """False: it has a keyword that xgrammar does not know. Then vLLM lets the schema hold, and the tools' do not."""
    schema = outputs.json
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        return not isinstance(schema, dict) or not has_xgrammar_unsupported_json_features(schema)
    except (ValueError, VLLMValidationError):
        return False
