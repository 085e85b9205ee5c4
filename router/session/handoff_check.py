"""HandoffCheck: verification of one handoff while it is used. It compares the log-probabilities of both engines.

1. If the client's first token comes from the decode engine, the prefill engine has reported its own most likely first
   tokens with its result.
2. If the first token comes from the prefill engine, or if that engine has not computed the whole prompt, the prefill
   engine generates one more token while the KV blocks are pulled. Most of that step comes from its prefix cache.
"""

import asyncio
from contextlib import aclosing

import msgspec

from cluster.errors import ServingError
from cluster.messages.generation import GenerateRequest, TokenDelta, TokenLogprob
from cluster.messages.ids import RequestId, WorkerId
from kvtransfer import verify
from kvtransfer.handoff import PrefillResult
from router.session.ports import DecodePort

PATIENCE_S = 2.0
"""Longest time that the next token waits for the check, in seconds. Longer delays tokens behind a slow prefill worker;
shorter leaves handoffs unchecked.
"""


class HandoffCheck:
    def __init__(
        self, prefill: WorkerId, request: GenerateRequest, prefilled: PrefillResult, engines: DecodePort
    ) -> None:
        """`request`: the request as the decode engine gets it."""
        self._reference: asyncio.Task[list[TokenLogprob] | None] | None = None
        self._known = prefilled.first.top_logprobs
        if request.is_resumable or not prefilled.follows(len(request.prompt_token_ids)):
            request = msgspec.structs.replace(request, request_id=RequestId(f"{request.request_id}-check"))
            self._reference = asyncio.create_task(_generated(prefill, request, engines))

    async def distance(self, observed: TokenDelta) -> float | None:
        """Distance of the log-probabilities of the decode engine's first step from those of the prefill engine
        (kvtransfer/verify.py). None if an engine has none: the engine has failed, has computed the prompt in more than
        one piece, or does not answer within PATIENCE_S.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                reference = await self._reference if self._reference is not None else self._known
        except TimeoutError:
            return None
        if reference is None or observed.top_logprobs is None:
            return None
        return verify.distance(reference, observed.top_logprobs)

    def end(self) -> None:
        if self._reference is not None:
            self._reference.cancel()


async def _generated(worker: WorkerId, request: GenerateRequest, engines: DecodePort) -> list[TokenLogprob] | None:
    """The most likely next tokens, from one step of the worker. None if the worker fails."""
    try:
        async with aclosing(engines.generate(worker, request, None)) as deltas:
            first = await anext(deltas, None)
            return first.top_logprobs if first else None
    except ServingError:
        return None
