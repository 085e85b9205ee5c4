"""Where a learned reference is kept: in the data folder of the node whose ingress replica has learned it, and in Redis
for replicas on other nodes. Both may be lost; then a reference is learned anew. Each one that is saved has a
generation, a number higher than that of the one before, so that no clock decides which one counts.
"""

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from api.quality.probe_set import MAX_FILE_BYTES, Reference
from api.state.redis.client import RedisClient
from cluster.unreadable import UNREADABLE

logger = logging.getLogger("baton.quality")

REFERENCE_FOLDER = "quality"
"""Folder in the data folder of the node."""


class ReferenceStore:
    def __init__(self, folder: Path, redis: RedisClient) -> None:
        self._folder = folder
        self._redis = redis
        self._saving = asyncio.Lock()
        self._not_shared: Reference | None = None
        """Saved while Redis was away."""

    async def load(self, fingerprint: str) -> Reference | None:
        """The reference of this fingerprint with the highest generation. It has no answers if an operator has had the
        one before forgotten. None if none is kept. The one in Redis counts if both have the same generation.
        """
        kept = [await self._shared(fingerprint), await asyncio.to_thread(_read, self._file(fingerprint))]
        found = [one for text in kept if (one := _decoded(text, fingerprint)) is not None]
        return max(found, key=lambda reference: reference.generation, default=None)

    async def save(self, reference: Reference, given: Reference | None = None) -> None:
        """Keep it with a generation higher than that of any other one. `given`: that of the file, which it replaces."""
        replaces = given.digest if given is not None else ""
        async with self._saving:
            before = await self.load(reference.fingerprint)
            generation = before.generation + 1 if before is not None else 1
            saved = msgspec.structs.replace(reference, generation=generation, replaces=replaces)
            try:
                await asyncio.to_thread(_write, self._file(saved.fingerprint), msgspec.json.encode(saved))
            except OSError as error:
                logger.warning("the reference of the quality probe is not kept in %s: %s", self._folder, error)
            self._not_shared = saved
        await self.share()

    async def share(self) -> None:
        """Put into Redis what was saved while Redis was away, unless another replica has saved a later one there."""
        saved = self._not_shared
        if saved is None:
            return
        there = _decoded(await self._shared(saved.fingerprint), saved.fingerprint)
        is_late = there is not None and there.generation >= saved.generation
        if is_late or await self._redis.run(("SET", _key(saved.fingerprint), msgspec.json.encode(saved))):
            self._not_shared = None if self._not_shared is saved else self._not_shared

    async def _shared(self, fingerprint: str) -> bytes | None:
        answers = await self._redis.run(("GET", _key(fingerprint)))
        return answers[0] if answers and isinstance(answers[0], bytes) else None

    def _file(self, fingerprint: str) -> Path:
        return self._folder / f"{fingerprint}.json"


def _key(fingerprint: str) -> str:
    return f"baton:quality:reference:{fingerprint}"


def _decoded(text: bytes | None, fingerprint: str) -> Reference | None:
    if text is None or len(text) > MAX_FILE_BYTES:
        return None
    try:
        reference = msgspec.json.decode(text, type=Reference)
    except UNREADABLE as error:
        logger.warning("a kept reference of the quality probe cannot be read: %s", error)
        return None
    return reference if reference.fingerprint == fingerprint else None


def _read(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None


def _write(file: Path, text: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_bytes(text)
    os.replace(new, file)
