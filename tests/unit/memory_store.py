"""A `KeyValueStore` (cluster/scheduler_registry.py) in memory."""

from collections.abc import Callable


class MemoryStore:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.before_put: Callable[[], object] = lambda: None
        self.is_away = False

    def get(self, key: str) -> bytes | None:
        self._require()
        return self.values.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._require()
        self.before_put()
        self.values[key] = value

    def put_new(self, key: str, value: bytes) -> bool:
        self._require()
        is_new = key not in self.values
        self.values.setdefault(key, value)
        return is_new

    def remove(self, key: str) -> None:
        self._require()
        self.values.pop(key, None)

    def keys(self, prefix: str) -> list[str]:
        self._require()
        return [key for key in self.values if key.startswith(prefix)]

    def _require(self) -> None:
        if self.is_away:
            raise ConnectionError("the store is away")
