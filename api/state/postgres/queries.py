"""Named SQL: each file of api/state/postgres/sql holds statements, each under a line `-- name: the_name`."""

from pathlib import Path
from typing import LiteralString

_FOLDER = Path(__file__).parent / "sql"
_MARK = "-- name: "


def queries(file: str) -> dict[str, LiteralString]:
    """The statements of a file, by name. Raises ValueError for a file that has a name twice."""
    found: dict[str, LiteralString] = {}
    for part in ("\n" + (_FOLDER / file).read_text()).split("\n" + _MARK)[1:]:
        name, _, statement = part.partition("\n")
        if name in found:
            raise ValueError(f"{file} has two statements with the name {name}")
        found[name] = statement.strip()
    return found
