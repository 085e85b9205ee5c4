"""The config sections `ingress.structured_output:`, `prefill.grammars:` and `decode.grammars:`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cluster.config.units import Count

LONGEST_STEP_BURSTS = 30
"""Most CPU time that all grammars of one step may take together, in units of `burst_ms`. At the limit, cheap grammars
are ended too. Fewer ends harmless grammars that share a step with costly ones; more delays other requests of the engine
longer.
"""


class StructuredOutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients may request of structured output, and what the check of a constraint may cost
    (docs/structured_output.md).
    """

    allow_grammars: bool = False
    """Whether clients may send their own grammars and structural tags. They reach the engines nearly unchecked: a few
    bytes of grammar can make each token of the request cost milliseconds, until the engine ends the request
    (`grammars:`).
    """
    max_schema_bytes: Annotated[int, Meta(ge=1 << 10, le=16 << 20)] = 256 << 10
    """Most bytes of one JSON schema, of all tools' parameters together, of a list of choices, or of a grammar. A higher
    limit accepts larger schemas, each of which costs an engine up to 0.3 ms of CPU time per KiB; a lower limit refuses
    them.
    """
    compile_s: Annotated[float, Meta(ge=0.05, le=60)] = 2.0
    """CPU time in which a constraint must compile, for all sequences of a request together, in seconds. A constraint
    that takes longer is refused. A higher limit accepts more complex constraints, and each one delays other constraints
    of its tenant for longer; a lower limit refuses them.
    """
    compile_memory_mib: Annotated[int, Meta(ge=64, le=1 << 16)] = 512
    """Memory that the compilation of one constraint may take, in MiB. A constraint that takes more is refused. A higher
    limit accepts more complex constraints; a lower limit protects the node.
    """
    compilers: Annotated[int, Meta(ge=2, le=64)] = 2
    """Processes that compile constraints, per ingress replica. One tenant uses at most all but one of them. More let
    more tenants send new constraints at once, and each takes about 50 MiB.
    """
    max_waiting: Count = 64
    """Most new constraints of one tenant that wait to be compiled, per ingress replica. More are refused with 429. A
    higher limit makes a tenant's requests wait longer; a lower limit refuses more of them.
    """


class GrammarBudgetConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it may cost an engine to follow the constraints of requests."""

    step_ms: Annotated[float, Meta(ge=1, le=1000)] = 20.0
    """CPU time that all grammars together may add to one engine step on average, in milliseconds. Each request has an
    equal share of it per token. A higher limit lets costly constraints slow all other requests of the engine; a lower
    limit ends more of them.
    """
    burst_ms: Annotated[float, Meta(ge=1, le=10_000)] = 100.0
    """CPU time that a request's grammar may take beyond its share, in milliseconds. Then the request is ended. A higher
    limit lets one slow step delay the engine longer; a lower limit ends constraints of which only a few tokens are
    costly.
    """
    compile_timeout_s: Annotated[float, Meta(ge=0.1, le=600)] = 30.0
    """Time that a request may wait in the engine for its constraint to be compiled, in seconds. Then the request is
    ended. The ingress has compiled the constraint once before. A shorter time ends requests when many constraints
    arrive together; a longer time lets them wait.
    """

    @property
    def longest_step_s(self) -> float:
        """Most CPU time that all grammars together may add to one step, in seconds."""
        return LONGEST_STEP_BURSTS * self.burst_ms / 1000
