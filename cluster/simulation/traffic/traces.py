"""Reads recorded traffic: arrival times, prompt and output lengths, and the prefixes that prompts share.

The first line of a file decides its format, and every file may be gzipped:

- Mooncake's JSON lines have a hash per 512 prompt tokens. Each hash stands for the whole prefix up to its block.
- Azure's CSV has no prefixes, so every prompt is new.
- A CSV of lengths has no arrivals.

Arrival times are the recorded ones. Rates and objectives come later (workload.py, slos.py).
"""

import csv
import gzip
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO, TypeVar

from cluster.messages.kv_events import KEY_BYTES
from cluster.simulation.traffic.workload import BLOCK_TOKENS, Arrival

MIN_QUANTUM_S, COINCIDENT, NEAR, WHOLE = 0.5, 1.5, 0.01, 0.9
"""When recorded arrival times count as rounded. All four bounds must hold:

- MIN_QUANTUM_S: least median gap between different times, in seconds.
- COINCIDENT: least mean number of requests per time.
- NEAR and WHOLE: more than the share WHOLE of the gaps differ from a whole multiple of the median gap by less than NEAR
  of that gap.

Looser bounds spread times that were exact; tighter bounds keep bursts that come from rounding.
"""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LENGTH_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")

Row = TypeVar("Row")
Line = tuple[int, str]
"""The number of a line in its file, from 1, and its text."""


class BadTrace(ValueError):
    """The file is not a trace that can be read. The message names the file, and the line where one is wrong."""


def read_trace(file: Path, first: int = 0, last: int | None = None, seed: int = 0) -> list[Arrival]:
    """Read rows [first, last) of a trace, in order of arrival. The first one arrives at 0.

    Rounded arrival times are spread uniformly over the interval that they were rounded to, because the rounded times
    are bursts that did not happen. `seed` affects only this spread.

    Raises:
        BadTrace: the file is not a trace, or has no arrivals, or has no rows in this range.
        OSError: the file cannot be read.
    """
    with _open(file) as text:
        rows = list(itertools.islice(_arrivals(file, text), last))
    if not rows[first:]:
        raise BadTrace(f"{file} has {len(rows)} rows, and none from row {first} on")
    quantum_s = _quantum_s(rows)
    rng = random.Random(seed)
    moved = [row.moved(rng.uniform(0.0, quantum_s)) for row in rows] if quantum_s else rows
    kept = sorted(moved[first:], key=lambda row: row.arrival_s)
    return [row.moved(-kept[0].arrival_s) for row in kept]


def read_lengths(file: Path, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
    """Read the prompt and output tokens of rows [first, last) of a file of any of the formats.

    Raises:
        BadTrace: the file has none of the formats, or no rows in this range of a trace.
        OSError: the file cannot be read.
    """
    with _open(file) as text:
        head, lines = _head(file, text)
        if _has_columns(head, LENGTH_COLUMNS):
            return list(itertools.islice(_parsed(file, lines, _csv_row(head, _lengths)), first, last))
    return [(row.num_prompt, row.num_output) for row in read_trace(file, first, last)]


def repeated(rows: list[Arrival], num_requests: int) -> list[Arrival]:
    """The first `num_requests` requests of the rows repeated without end.

    Prompts of different rounds share no prefix. Otherwise a cache that outlives a round would serve the later rounds.
    """
    round_s = rows[-1].arrival_s * len(rows) / max(1, len(rows) - 1) or 1.0
    rounds = itertools.count()
    endless = ((number, row) for number in rounds for row in rows)
    return [
        row if not number else row.moved(number * round_s, salt=number)
        for number, row in itertools.islice(endless, num_requests)
    ]


def _open(file: Path) -> TextIO:
    with file.open("rb") as raw:
        is_gzipped = raw.read(2) == b"\x1f\x8b"
    return gzip.open(file, "rt", encoding="utf-8-sig") if is_gzipped else file.open(encoding="utf-8-sig")


def _head(file: Path, text: TextIO) -> tuple[str, Iterator[Line]]:
    lines = ((number, line.strip()) for number, line in enumerate(text, 1) if line.strip())
    try:
        _, head = next(lines)
    except StopIteration:
        raise BadTrace(f"{file} is empty") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise BadTrace(f"{file} is not text: {error}") from error
    return head, lines


def _arrivals(file: Path, text: TextIO) -> Iterator[Arrival]:
    head, lines = _head(file, text)
    if head.startswith("{"):
        return _parsed(file, itertools.chain([(1, head)], lines), _mooncake)
    if _has_columns(head, AZURE_COLUMNS):
        return _parsed(file, lines, _csv_row(head, _azure))
    if _has_columns(head, LENGTH_COLUMNS):
        raise BadTrace(f"{file} has lengths without arrivals: give it to a mix with --lengths, not as a trace")
    raise BadTrace(
        f"{file}: line 1 is neither a JSON object as in Mooncake's traces nor the header "
        f"{','.join(AZURE_COLUMNS)} of Azure's traces: {head[:80]}"
    )


def _parsed(file: Path, lines: Iterable[Line], parse: Callable[[str], Row]) -> Iterator[Row]:
    for number, line in lines:
        try:
            yield parse(line)
        except KeyError as error:
            raise BadTrace(f"{file}, line {number}: {error.args[0]} is missing in {line[:80]}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise BadTrace(f"{file}, line {number}: {error}") from error


def _has_columns(head: str, columns: Iterable[str]) -> bool:
    return set(columns) <= set(next(csv.reader([head])))


def _csv_row(head: str, parse: Callable[[dict[str, str]], Row]) -> Callable[[str], Row]:
    columns = next(csv.reader([head]))
    return lambda line: parse(dict(zip(columns, next(csv.reader([line])), strict=False)))


def _mooncake(line: str) -> Arrival:
    row = json.loads(line)
    num_prompt, hash_ids = _tokens(row["input_length"]), row["hash_ids"]
    if len(hash_ids) > math.ceil(num_prompt / BLOCK_TOKENS):
        raise ValueError(f"{len(hash_ids)} hash_ids are too many for {num_prompt} tokens in blocks of {BLOCK_TOKENS}")
    return Arrival(
        arrival_s=float(row["timestamp"]) / 1e3,
        num_prompt=num_prompt,
        num_output=_tokens(row["output_length"]),
        # The id of a last, partial block is left out, because prompts share full blocks only.
        block_hashes=[int(number).to_bytes(KEY_BYTES, "big") for number in hash_ids[: num_prompt // BLOCK_TOKENS]],
    )


def _azure(row: dict[str, str]) -> Arrival:
    return Arrival(
        arrival_s=_seconds(row["TIMESTAMP"]),
        num_prompt=_tokens(row["ContextTokens"]),
        num_output=_tokens(row["GeneratedTokens"]),
    )


def _lengths(row: dict[str, str]) -> tuple[int, int]:
    return _tokens(row["num_prefill_tokens"]), _tokens(row["num_decode_tokens"])


def _tokens(value: str | int) -> int:
    """The recorded number, but at least 1, because an engine takes no empty prompt and gives no empty answer."""
    number = int(value)
    if number < 0:
        raise ValueError(f"{number} is a negative number of tokens")
    return max(1, number)


def _seconds(timestamp: str) -> float:
    """Seconds since 1970 of an ISO time. Azure's have seven decimals, one more than datetime parses."""
    whole, _, rest = timestamp.partition(".")
    digits = "".join(itertools.takewhile(str.isdigit, rest))
    zone = rest[len(digits) :] or ("" if "+" in whole or whole.endswith("Z") else "+00:00")
    return datetime.fromisoformat(whole + zone).timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _quantum_s(rows: list[Arrival]) -> float:
    """Seconds that the arrival times were rounded to when they were recorded, or 0 if they were not rounded.

    Several requests share a rounded time. The gaps between rounded times are whole quanta, except for clock jitter.
    """
    times = sorted({row.arrival_s for row in rows})
    gaps = [after - before for before, after in itertools.pairwise(times)]
    if not gaps or len(rows) < COINCIDENT * len(times):
        return 0.0
    quantum_s = statistics.median(gaps)
    near = sum(abs(gap / quantum_s - round(gap / quantum_s)) < NEAR for gap in gaps)
    return quantum_s if quantum_s >= MIN_QUANTUM_S and near > WHOLE * len(gaps) else 0.0
