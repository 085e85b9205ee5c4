"""One handoff, checked while it is used: does the decode engine see what the prefill engine computed?

Where the first token is the decode engine's, the prefill engine has reported its own most likely first tokens. Where it
is the prefill engine's, or where that engine has not computed the whole prompt, it is asked what follows: one step,
mostly from its cache, while the blocks are pulled.
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
"""The client's next token waits for the check."""


class HandoffCheck:
    def __init__(
        self, prefill: WorkerId, request: GenerateRequest, prefilled: PrefillResult, engines: DecodePort
    ) -> None:
        """`request` as the decode engine gets it."""
        self._reference: asyncio.Task[list[TokenLogprob] | None] | None = None
        self._known = prefilled.first.top_logprobs
        if request.is_resumable or not prefilled.follows(len(request.prompt_token_ids)):
            request = msgspec.structs.replace(request, request_id=RequestId(f"{request.request_id}-check"))
            self._reference = asyncio.create_task(_asked(prefill, request, engines))

    async def distance(self, observed: TokenDelta) -> float | None:
        """From the prefill engine's view to the decode engine's first step (kvtransfer/verify.py). None where either
        has none: it failed meanwhile, computed the prompt in more than one piece, or is too busy to be waited for.
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


async def _asked(worker: WorkerId, request: GenerateRequest, engines: DecodePort) -> list[TokenLogprob] | None:
    try:
        async with aclosing(engines.generate(worker, request, None)) as deltas:
            first = await anext(deltas, None)
            return first.top_logprobs if first else None
    except ServingError:
        return None
