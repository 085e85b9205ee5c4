"""A worker drops KV blocks that were found wrong, when an ingress asks for it (router/session/handoff_check.py).

One wish is worked on at a time. Wishes that wait are kept once each, and the wish to drop everything replaces all
others, so that many messages cost no more than a few.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from cluster.errors import ServingError
from cluster.messages.ids import WorkerId
from cluster.rpc.connection import Connection, Service
from cluster.rpc.protocol import FORGET
from kvtransfer.handoff import PulledBlocks

logger = logging.getLogger("baton.worker")


class ForgettingEngine(Protocol):
    async def forget(self, blocks: PulledBlocks) -> None:
        """Raises ServingError if these blocks alone cannot be dropped."""
        ...

    async def forget_prefixes(self) -> None:
        """Raises ServingError."""
        ...


class Forgetting:
    def __init__(
        self,
        engine: ForgettingEngine,
        service: Service,
        *,
        on_convicted: Callable[[WorkerId], None],
        on_failed: Callable[[str], None],
    ) -> None:
        """`on_convicted` is called with a prefill worker all of whose blocks are dropped; `on_failed` if the worker
        must be replaced, because blocks that are wrong cannot be dropped.
        """
        self._engine = engine
        self._on_convicted = on_convicted
        self._on_failed = on_failed
        self._wishes: dict[PulledBlocks | None, None] = {}
        self._working: asyncio.Task[None] | None = None
        service.on_post(FORGET, self._wished)

    def _wished(self, _: Connection, blocks: PulledBlocks | None) -> None:
        if None in self._wishes:
            return
        if blocks is None:
            self._wishes.clear()
        self._wishes[blocks] = None
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    async def _work(self) -> None:
        while self._wishes:
            blocks = next(iter(self._wishes))
            del self._wishes[blocks]
            try:
                await self._forget(blocks)
            except ServingError as error:
                self._on_failed(str(error))
            except Exception as error:  # the other wishes must be worked on, too
                logger.exception("cached blocks that are wrong were not dropped")
                self._on_failed(f"wrong blocks were not dropped: {error!r}")

    async def _forget(self, blocks: PulledBlocks | None) -> None:
        if blocks is not None:
            if blocks.lease is None:
                self._on_convicted(blocks.lender)
            try:
                await self._engine.forget(blocks)
            except Exception as error:  # also one that nobody has foreseen: the wrong blocks must go
                logger.warning("all cached blocks are dropped: %r", error)
            else:
                logger.warning("dropped what was pulled from %s: %s", blocks.lender, blocks.lease or "all of it")
                return
        await self._engine.forget_prefixes()
        logger.warning("the prefix cache was emptied: it cannot be trusted")
