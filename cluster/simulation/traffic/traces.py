"""Reads recorded traffic: when requests arrived, how long they were, what their prompts share.

Formats are known by their first line: Mooncake's JSON lines (a hash per 512 prompt tokens, each of the whole prefix up
to there), Azure's CSV (no prefixes: every prompt is new), and CSV of lengths alone, which has no arrivals. Any of them
may be gzipped. Nothing here knows rates or objectives: arrival times are the recorded ones.
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
"""Arrival times were rounded when they lie at least so far apart, hold so many requests each on average, and this share
of their gaps is so near to whole multiples of the median gap.
"""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LENGTH_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")

Row = TypeVar("Row")
Line = tuple[int, str]
"""Its number in the file, from 1, and its text."""


class BadTrace(ValueError):
    """The file is not a trace that can be read; says where."""


def read_trace(file: Path, first: int = 0, last: int | None = None, seed: int = 0) -> list[Arrival]:
    """Rows [first, last) of a trace in order of arrival, the earliest at 0.

    Rounded arrival times are spread uniformly over what they were rounded to: as recorded, requests would come in
    bursts that never were. `seed` is for that alone.

    Raises:
        BadTrace: not a trace, or one without arrivals, or without rows there.
        OSError: the file cannot be read.
    """
    with _open(file) as text:
        rows = list(itertools.islice(_arrivals(file, text), last))
    if not rows[first:]:
        raise BadTrace(f"{file} has {len(rows)} rows, none from {first} on")
    quantum_s = _quantum_s(rows)
    rng = random.Random(seed)
    moved = [row.moved(rng.uniform(0.0, quantum_s)) for row in rows] if quantum_s else rows
    kept = sorted(moved[first:], key=lambda row: row.arrival_s)
    return [row.moved(-kept[0].arrival_s) for row in kept]


def read_lengths(file: Path, first: int = 0, last: int | None = None) -> list[tuple[int, int]]:
    """Prompt and output tokens of the requests in rows [first, last) of a trace of any format.

    Raises:
        BadTrace, OSError: as `read_trace`.
    """
    with _open(file) as text:
        head, lines = _head(file, text)
        if _has_columns(head, LENGTH_COLUMNS):
            return list(itertools.islice(_parsed(file, lines, _csv_row(head, _lengths)), first, last))
    return [(row.num_prompt, row.num_output) for row in read_trace(file, first, last)]


def repeated(rows: list[Arrival], num_requests: int) -> list[Arrival]:
    """So many requests: the first ones, or all again and again. A prompt shares nothing with those of other rounds:
    else a cache that outlives a round would make the later ones look easy.
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
        raise BadTrace(f"{file} has lengths without arrivals: give it to a mix, not as a trace")
    raise BadTrace(
        f"{file}: line 1 is neither a JSON object, as in Mooncake's traces, nor the header "
        f"{','.join(AZURE_COLUMNS)} of Azure's: {head[:80]}"
    )


def _parsed(file: Path, lines: Iterable[Line], parse: Callable[[str], Row]) -> Iterator[Row]:
    for number, line in lines:
        try:
            yield parse(line)
        except KeyError as error:
            raise BadTrace(f"{file}, line {number}: no {error.args[0]} in {line[:80]}") from error
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
        raise ValueError(f"{len(hash_ids)} hash_ids for {num_prompt} tokens: blocks of {BLOCK_TOKENS} are expected")
    return Arrival(
        arrival_s=float(row["timestamp"]) / 1e3,
        num_prompt=num_prompt,
        num_output=_tokens(row["output_length"]),
        # The id of a last, partial block is left out: nobody can share a block that is not full.
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
    """At least 1: an engine computes no empty prompt and gives no empty answer."""
    number = int(value)
    if number < 0:
        raise ValueError(f"{number} tokens")
    return max(1, number)


def _seconds(timestamp: str) -> float:
    """Of an ISO time with up to seven decimals, which is one more than datetime takes."""
    whole, _, rest = timestamp.partition(".")
    digits = "".join(itertools.takewhile(str.isdigit, rest))
    zone = rest[len(digits) :] or ("" if "+" in whole or whole.endswith("Z") else "+00:00")
    return datetime.fromisoformat(whole + zone).timestamp() + (float(f"0.{digits}") if digits else 0.0)


def _quantum_s(rows: list[Arrival]) -> float:
    """What the arrival times were rounded to when they were recorded; 0 when they were not.

    Rounded times coincide, and lie whole quanta apart but for the clock's own jitter.
    """
    times = sorted({row.arrival_s for row in rows})
    gaps = [after - before for before, after in itertools.pairwise(times)]
    if not gaps or len(rows) < COINCIDENT * len(times):
        return 0.0
    quantum_s = statistics.median(gaps)
    near = sum(abs(gap / quantum_s - round(gap / quantum_s)) < NEAR for gap in gaps)
    return quantum_s if quantum_s >= MIN_QUANTUM_S and near > WHOLE * len(gaps) else 0.0
