"""What tests ask the tables of the ledger."""

from typing import Any, Protocol


class Ask(Protocol):
    def __call__(self, query: Any, *values: object) -> list[tuple[Any, ...]]: ...
