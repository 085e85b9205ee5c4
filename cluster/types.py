"""The messages that cross a process, and the ids and closed sets they are made of.

One frozen struct per message, no behaviour beyond derived properties. Units are in the names; who fills a field is said
beside it. Token ids are those of the served model's tokenizer.
"""

from enum import StrEnum
from typing import NewType, Self

import msgspec

RequestId = NewType("RequestId", str)
IngressId = NewType("IngressId", str)
"""Of one ingress process, made by it when it starts: a restarted ingress is another one."""
WorkerId = NewType("WorkerId", str)
"""Serve's unique id of a replica: never reused, so a restarted worker is another worker."""


class Pool(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Path(StrEnum):
    """Where a request runs."""

    PREFILL_DECODE = "P->D"
    """Prefill on a prefill worker, KV blocks handed over, decode on a decode worker."""
    DECODE = "D"
    """The whole request on a decode worker."""
    PREFILL = "P"
    """The whole request on a prefill worker."""


class FinishReason(StrEnum):
    """Why a sequence ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REPETITION = "repetition"


class SloClass(StrEnum):
    """How long a request may take, and who waits for whom (cluster/slo.py). Highest first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class Slo(msgspec.Struct, frozen=True, array_like=True):
    """What one request must meet to count as goodput."""

    ttft_s: float
    tpot_s: float


class Outcome(StrEnum):
    """How a request was closed."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left, or read too slowly."""
    REJECTED = "rejected"
    """No worker could take it."""
    FAILED = "failed"


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered request: what an engine needs to generate, with the engine's own types left opaque."""

    request_id: RequestId
    prompt_token_ids: list[int]
    sampling_params: bytes
    """vLLM's SamplingParams, encoded by its own serializer (cluster/engine.py)."""
    cache_salt: str | None = None
    """KV blocks are found again by requests of the same salt alone. None: by all that have none."""
    num_sequences: int = 1
    """`n` of the API: sequences that share this prompt."""
    max_output_tokens: int | None = None
    """Of each sequence."""
    needs_prompt_logprobs: bool = False
    is_resumable: bool = False
    """Another engine may go on with what one engine has generated, as if it were part of the prompt, and nobody can
    tell (cluster/sampling.py).
    """
    num_generated: int = 0
    """So many tokens at the end of `prompt_token_ids` were generated for this request before."""
    is_verifiable: bool = False
    """The engine may be asked for its most likely tokens: no client has asked it for others."""
    is_verified: bool = False
    """The engine is to report its most likely first tokens, to be compared with another engine's."""
    is_suspect: bool = False
    """An engine was lost with it. It is given only to an engine that has just answered, so that the loss of that one,
    too, is told from the loss of many engines at once.
    """
    reasoning_ended: bool | None = None
    """Whether the prompt already closed its reasoning block: gates structured output (None: no reasoning parser)."""
    reasoning_parser_kwargs: dict[str, object] | None = None

    def after(self, token_ids: list[int]) -> Self:
        """The same request for an engine that goes on after these tokens."""
        return msgspec.structs.replace(
            self,
            prompt_token_ids=self.prompt_token_ids + token_ids,
            num_generated=self.num_generated + len(token_ids),
        )


class PromptTokenSources(msgspec.Struct, frozen=True, array_like=True):
    """Where the KV of a prompt's tokens came from on one engine; they add up to the prompt."""

    computed: int
    local: int
    """Hits in this engine's prefix cache."""
    pulled: int
    """Handed over by another engine."""
    offloaded: int = 0
    """Brought back from this engine's DRAM or disk tier."""

    @property
    def cached(self) -> int:
        """Tokens that this engine did not compute."""
        return self.local + self.pulled + self.offloaded


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float
    """Natural logarithm of the model's probability."""


class TokenDelta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What one engine step produced for one sequence of a request."""

    sequence: int
    """Index in [0, num_sequences)."""
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token or stop string that ended the sequence."""
    prompt_sources: PromptTokenSources | None = None
    """On the first delta of a sequence."""
    logprobs: tuple[bytes, ...] | None = None
    """vLLM's sample and prompt logprobs of this step, opaque, when the request asked for them."""
    top_logprobs: list[TokenLogprob] | None = None
    """The most likely tokens of this step, on the first delta of a request whose hand-over is verified."""


class Address(msgspec.Struct, frozen=True):
    """Where a process of the cluster listens for the others (cluster/channel.py)."""

    host: str
    port: int
    process: str
    """The random id of the process, in hexadecimal and public: another process that has taken the port since is refused
    by it.
    """


class PlacementRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What placement needs to know of a request."""

    request_id: RequestId
    num_prompt_tokens: int
    block_hashes: list[bytes] = []
    """Of the prompt's full KV blocks, chained from its start, as the engines hash them."""
    has_early_token: bool = False
    """On path P->D its client gets the first token from the prefill worker."""
    num_output_tokens: int = 0
    """That it has generated before, on workers that failed; part of the prompt."""
    max_output_tokens: int | None = None
    """Of each sequence, with those."""
    num_sequences: int = 1
    tenant: str = ""
    slo_class: SloClass = SloClass.STANDARD
    ttft_s: float | None = None
    """A tighter TTFT objective than the class's."""
    tpot_s: float | None = None
    """A tighter TPOT objective than the class's."""
    age_s: float = 0.0
    """Since it arrived at the ingress."""
    can_hand_over: bool = True
    """False where vLLM cannot take the prompt's KV from another engine (n > 1, prompt logprobs)."""
    excluded: frozenset[WorkerId] = frozenset()
    """Workers that this request already failed on."""
    lost: frozenset[WorkerId] = frozenset()
    """Of these, the ones that died, hung or could not be reached."""
    num_engines_lost: int = 0
    """Engines that died or hung one after another while they had the request, or one of the same digest."""
    digest: bytes = b""
    """Of what an engine computes for the request, its tenant included. Equal for one that is sent again."""
    path: Path | None = None
    """Forces a path (operator's debugging header)."""


class Prediction(msgspec.Struct, frozen=True, array_like=True):
    """What one way to run a request is expected to bring (router/cost.py)."""

    path: Path
    prefill: WorkerId | None
    decode: WorkerId | None
    ttft_s: float
    tpot_s: float
    risk: float
    """That the request misses its own SLO, in [0, 1]."""
    victims: float
    """Requests there that would miss theirs because of it."""
    gpu_s: float
    """Engine time that it takes."""
    cost: float
    """What placement minimizes: risk, victims and the smaller terms."""
    engine_ttft_s: float = 0.0
    """By the engine models alone, before the path's bias is corrected (router/path_bias.py). 0: not by prediction."""
    engine_tpot_s: float = 0.0
    """Likewise, of an answer of median length."""
    engine_gap_s: float = 0.0
    """Likewise: from the first token to the second, more than between others."""
    future_victims: float = 0.0
    """Requests yet to come that would miss their SLO because of it."""
    holds_first: bool = False
    """The first token, which the prefill worker has, is released with the decode worker's first one."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The Scheduler's answer."""

    path: Path
    prefill: WorkerId | None
    """None on path D."""
    decode: WorkerId | None
    """None on path P."""
    why: str
    slo: Slo | None = None
    """What it is to meet."""
    num_hit_tokens: int = 0
    """Of the prompt, that the worker which prefills should find in its caches."""
    predicted: Prediction | None = None
    """None where it was not chosen by prediction."""
    considered: tuple[Prediction, ...] = ()
    """The best candidate of each path, the chosen one first."""
    holds_first_until_s: float = 0.0
    """Age of the request at which the prefill worker's token is released although decoding has not begun."""
    num_engines_lost: int = 0
    """Engines that were lost with requests of its digest before."""

    @property
    def generating(self) -> WorkerId:
        """The worker whose tokens the client gets."""
        worker = self.decode or self.prefill
        assert worker is not None
        return worker


class Rejection(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """No worker can take the request now."""

    retry_after_s: float
    why: str
    is_overload: bool = False
    """The load is the reason. Otherwise there is no worker that could take it."""
    is_quarantined: bool = False
    """Engines were lost with the same request before. It is not to be sent again."""


class PrefillDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """On path P->D: the prompt has been computed; the decode worker is next."""

    request_id: RequestId


class FirstToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The generating worker has given its first token: from here on the request decodes."""

    request_id: RequestId


class RequestClosed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A placed request has ended, whatever the outcome; releases what placement charged."""

    request_id: RequestId
    digest: bytes = b""
    """As in its `PlacementRequest`."""
    num_output_tokens: int | None = None
    """When it finished by itself; of all its sequences."""
    num_engines_lost: int = 0
    """Engines that were lost while they ran it."""
    ttft_s: float | None = None
    """Since its arrival at the ingress, when it had a token."""
    tpot_s: float | None = None
    """When it had two."""

    @property
    def is_harmless(self) -> bool:
        """It has run from beginning to end, and no engine was lost with it."""
        return self.num_output_tokens is not None and not self.num_engines_lost


class WorkerLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An ingress process cannot reach a worker."""

    worker: WorkerId


class WorkerLeft(msgspec.Struct, frozen=True, kw_only=True):
    """A worker says that it takes no more requests, or none until it reports again."""

    worker: WorkerId
    engine_silent_s: float | None = None
    """Seconds since its engine, which is dead or hangs, last answered. None: the engine is well."""


class EngineLostWith(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An engine died or hung while it had a request."""

    digest: bytes
    worker: WorkerId
    num_engines_lost: int
    """Engines that were lost one after another with requests of this digest, with this one."""
    age_s: float = 0.0
    """Seconds since then, where another Scheduler process is told."""


class PairSuspected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A hand-over between two workers was wrong: no more of them for a while."""

    prefill: WorkerId
    decode: WorkerId


SchedulerEvent = PrefillDone | FirstToken | RequestClosed | WorkerLost | PairSuspected | EngineLostWith
"""What a session tells the Scheduler."""


class OpenRequests(msgspec.Struct, frozen=True, array_like=True):
    """All requests of an ingress process that are open, or about to be placed. The first message on its connection."""

    ingress: IngressId
    connection: int
    """Number of the connection: the process counts those that it has made."""
    requests: list[RequestId]


class Events(msgspec.Struct, frozen=True, array_like=True):
    """Events of an ingress process, in order."""

    first: int
    """Number of the first one. The process numbers all its events from 1 on."""
    events: list[SchedulerEvent]
