"""The sections `ingress.structured_output:` and `prefill.grammars:`, `decode.grammars:`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.units import Count

LONGEST_STEP_BURSTS = 30
"""That all grammars of a step may take together, those that were cheap until then included. Fewer ends honest ones in
the company of costly ones, more holds up the other requests of the engine for longer.
"""


class StructuredOutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may ask of structured output, and what finding out may cost. See docs/structured_output.md."""

    allow_grammars: bool = False
    """Let clients send grammars and structural tags of their own. They reach the engines nearly unchecked: a few bytes
    of grammar can make each token of the request cost milliseconds, until the engine ends it (`grammars`).
    """
    max_schema_bytes: Annotated[int, Meta(ge=1 << 10, le=16 << 20)] = 256 << 10
    """Of one JSON schema, of all tools' parameters together, of a list of choices, of a grammar. More admits larger
    schemas, each of which costs an engine up to 0.3 ms of CPU time per KiB.
    """
    compile_s: Annotated[float, Meta(ge=0.05, le=60)] = 2.0
    """CPU time in which a constraint must compile, all of a request's sequences together. More admits more complex
    constraints; while one compiles it holds up others of its tenant.
    """
    compile_memory_mib: Annotated[int, Meta(ge=64, le=1 << 16)] = 512
    """Memory that compiling one constraint may take. More admits more complex constraints, less protects the node."""
    compilers: Annotated[int, Meta(ge=2, le=64)] = 2
    """Processes that compile constraints, per ingress replica. One tenant holds all but one of them at most. More lets
    more tenants send new constraints at once, and takes about 50 MiB each.
    """
    max_waiting: Count = 64
    """New constraints of one tenant that may wait to be compiled, in an ingress replica; more are refused with 429."""


class GrammarBudgetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What following the constraints of requests may cost an engine."""

    step_ms: Annotated[float, Meta(ge=1, le=1000)] = 20.0
    """CPU time that all grammars together may add to an engine's step, in the long run: each request has its share of
    it per token. More lets costly constraints slow all other requests of the engine, less ends more of them.
    """
    burst_ms: Annotated[float, Meta(ge=1, le=10_000)] = 100.0
    """CPU time that a request's grammar may take beyond its share before the request is ended. More lets one slow step
    hold up the engine for longer, less ends constraints of which only a few tokens are costly.
    """
    compile_timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 30.0
    """How long a request may wait in the engine for its constraint to be compiled before it is refused. The ingress has
    compiled it before: shorter refuses requests where many constraints come at once, longer lets them wait.
    """

    @property
    def longest_step_s(self) -> float:
        """CPU time that all grammars together may add to one step."""
        return LONGEST_STEP_BURSTS * self.burst_ms / 1000
