"""HandoffCheck: verification of one handoff while it is used. It compares the log-probabilities of both engines.

1. If the client's first token comes from the decode engine, the prefill engine has reported its own most likely first
   tokens with its result.
2. If the first token comes from the prefill engine, or if that engine has not computed the whole prompt, the prefill
   engine generates one more token while the KV blocks are pulled. Most of that step comes from its prefix cache.

If the two are farther apart than the tolerance of the placement, the decode engine computes the request anew, without
the handoff and without its caches. The answer comes from there, and its first step tells who was wrong
(kvtransfer/verify.py). If that step does not come, nobody is blamed. A copy that is wrong, or that was not judged, is
dropped at once. The second wrong handoff of a pair convicts it: everything that the decode worker has from this prefill
worker is dropped, and the prefill worker's own cache if that was wrong.
"""

import asyncio
import logging
import secrets
from contextlib import aclosing

import msgspec

from cluster.errors import ServingError
from cluster.messages.generation import GenerateRequest, TokenDelta, TokenLogprob
from cluster.messages.ids import RequestId, WorkerId
from cluster.messages.placement import HandoffTerms
from cluster.messages.scheduler_events import HandoffChecked, HandoffVerdict
from kvtransfer import verify
from kvtransfer.handoff import KVHandoff, PrefillResult, PulledBlocks
from router.session.ports import DecodePort, SessionPorts
from router.session.tally import AttemptTally

logger = logging.getLogger("baton.session")

PATIENCE_S = 2.0
"""Longest time that the next token waits for the check, in seconds. Longer delays tokens behind a slow prefill worker;
shorter leaves handoffs unchecked.
"""


class HandoffCheck:
    def __init__(
        self,
        handoff: KVHandoff,
        decode: WorkerId,
        terms: HandoffTerms,
        request: GenerateRequest,
        prefilled: PrefillResult,
        ports: SessionPorts,
        tally: AttemptTally,
    ) -> None:
        """`request`: the request as the decode engine gets it."""
        self._handoff = handoff
        self._decode = decode
        self._terms = terms
        self._request = request
        self._ports = ports
        self._generating: asyncio.Task[list[TokenLogprob] | None] | None = None
        self._reference = prefilled.first.top_logprobs
        if request.is_resumable or not prefilled.follows(len(request.prompt_token_ids)):
            request = msgspec.structs.replace(request, request_id=RequestId(f"{request.request_id}-check"))
            self._generating = asyncio.create_task(_generated(handoff.worker, request, ports.decode, tally))

    async def distance(self, observed: TokenDelta) -> float | None:
        """Distance of the log-probabilities of the decode engine's first step from those of the prefill engine
        (kvtransfer/verify.py). None if an engine has none: the engine has failed, has computed the prompt in more than
        one piece, or does not answer within PATIENCE_S.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._generating is not None:
                    self._reference = await self._generating
        except TimeoutError:
            return None
        if self._reference is None or observed.top_logprobs is None:
            return None
        return verify.distance(self._reference, observed.top_logprobs)

    def accepts(self, distance: float | None) -> bool:
        """Whether the handoff may be used. Without a distance, that of a suspected pair may not."""
        if distance is None:
            return self._terms.num_strikes == 0
        if distance > self._terms.tolerance:
            return False
        self._tell(HandoffVerdict.AGREES, distance)
        return True

    @property
    def request_anew(self) -> GenerateRequest:
        """The request for a computation without any cached block: nobody else has its salt."""
        return msgspec.structs.replace(
            self._request,
            request_id=RequestId(f"{self._request.request_id}-anew"),
            cache_salt=f"{self._request.cache_salt or ''}{secrets.token_hex(16)}",
            num_public_tokens=0,
        )

    def judge(self, copy: TokenDelta, anew: TokenDelta) -> HandoffVerdict | None:
        """Decide who was wrong, and have the wrong blocks dropped. `copy` and `anew`: the decode engine's first steps
        with and without the handoff. Returns None if there was nothing to compare, which is no strike.
        """
        reference, observed, third = self._reference, copy.top_logprobs, anew.top_logprobs
        if reference is None or observed is None or third is None:
            self.drop_copy()
            return None
        check, prefill = verify.distance(reference, observed), verify.distance(reference, third)
        copied = verify.distance(third, observed)
        verdict = verify.verdict(check, prefill, copied, self._terms.tolerance)
        logger.error(
            "request %s: %s and %s are %.2f nats apart, more than %.2f; without the handoff, %s is %.2f from the first "
            "and %.2f from itself: %s",
            self._request.request_id,
            self._handoff.worker,
            self._decode,
            check,
            self._terms.tolerance,
            self._decode,
            prefill,
            copied,
            verdict,
        )
        self._tell(verdict, check)
        if verdict.is_strike:
            self._drop(verdict)
        return verdict

    def drop_copy(self) -> None:
        """Have the blocks of this handoff dropped, which may be wrong, and blame nobody."""
        lender, lease = self._handoff.worker, self._handoff.lease
        logger.warning(
            "request %s: what %s has pulled from %s may be wrong, and nothing tells: it is dropped",
            self._request.request_id,
            self._decode,
            lender,
        )
        self._ports.decode.forget(self._decode, PulledBlocks(lender, lease))

    def end(self) -> None:
        if self._generating is not None:
            self._generating.cancel()

    @property
    def _num_strikes(self) -> int:
        """Strikes of the pair, if this handoff is wrong."""
        return self._terms.num_strikes + 1

    def _tell(self, verdict: HandoffVerdict, distance: float) -> None:
        checked = HandoffChecked(
            prefill=self._handoff.worker,
            decode=self._decode,
            verdict=verdict,
            distance=distance,
            num_strikes=self._num_strikes if verdict.is_strike else self._terms.num_strikes,
        )
        self._ports.observer.verified(checked)
        self._ports.scheduler.tell(checked)

    def _drop(self, verdict: HandoffVerdict) -> None:
        lender, engines = self._handoff.worker, self._ports.decode
        if self._num_strikes >= verify.MAX_STRIKES:
            engines.forget(self._decode, PulledBlocks(lender))
            if verdict is HandoffVerdict.PREFILL_WRONG:
                engines.forget(lender, None)
        elif verdict is not HandoffVerdict.PREFILL_WRONG:
            engines.forget(self._decode, PulledBlocks(lender, self._handoff.lease))


async def _generated(
    worker: WorkerId, request: GenerateRequest, engines: DecodePort, tally: AttemptTally
) -> list[TokenLogprob] | None:
    """The most likely next tokens, from one step of the worker. None if the worker fails."""
    try:
        tally.asked(1)
        async with aclosing(engines.generate(worker, request, None)) as deltas:
            first = await anext(deltas, None)
            if first is None:
                return None
            tally.checked(first)
            return first.top_logprobs
    except ServingError:
        return None
