"""Where a learned reference is kept: in the data folder of the node whose ingress replica has learned it, and in Redis
for replicas on other nodes. Both may be lost; then a reference is learned anew.
"""

import asyncio
import logging
import os
from pathlib import Path

import msgspec

from api.quality.probe_set import MAX_FILE_BYTES, Reference
from api.state.redis.client import RedisClient

logger = logging.getLogger("baton.quality")

REFERENCE_FOLDER = "quality"
"""Folder in the data folder of the node."""


class ReferenceStore:
    def __init__(self, folder: Path, redis: RedisClient) -> None:
        self._folder = folder
        self._redis = redis

    async def load(self, fingerprint: str) -> Reference | None:
        """The reference with this fingerprint that was learned last. None if none is kept."""
        kept = [await asyncio.to_thread(_read, self._file(fingerprint)), await self._shared(fingerprint)]
        found = [one for text in kept if (one := _decoded(text, fingerprint)) is not None]
        return max(found, key=lambda reference: reference.learned_at, default=None)

    async def save(self, reference: Reference) -> None:
        text = msgspec.json.encode(reference)
        await self._redis.run(("SET", _key(reference.fingerprint), text))
        try:
            await asyncio.to_thread(_write, self._file(reference.fingerprint), text)
        except OSError as error:
            logger.warning("the reference of the quality probe is not kept in %s: %s", self._folder, error)

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
    except msgspec.MsgspecError as error:
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
