"""`baton trace`: where the time of one request has gone."""

import argparse
import json
import shutil
import sys
from urllib.parse import quote

import msgspec

from cluster.cli.ask_service import add_service_options, ask
from cluster.cli.operate.visible import visible
from cluster.errors import RECEIPT_NOT_FOUND
from router.session.waterfall import Waterfall, WaterfallRow

LEAST_BAR, MOST_BAR = 20, 60
"""Columns of the bars."""
NAME_COLUMNS, PLACE_COLUMNS = 18, 16
NOT_MEASURED = "~"
"""Stands before the names of stages that nothing has measured."""
LEAST_WIDTH = 80
"""Columns that are used in a narrower terminal too, and where the output is no terminal."""


class TraceAnswer(msgspec.Struct):
    """What is read of the answer of GET /baton/receipts/ID."""

    waterfalls: list[Waterfall]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the timeline of a request that has ended: each stage with its place, its begin and its "
        "length, the path that the request took and why, what was expected beside what came, and what of the prompt "
        "was cached. The request is named by the x-request-id of its answer, or by the id in its body. The latest "
        "requests are kept (ingress.keep_receipts). Ends with 1 if the service does not answer or does not know the "
        "request."
    )
    parser.add_argument("id", metavar="ID", help="x-request-id of the answer, or the request's id in the receipts")
    parser.add_argument("--all", action="store_true", help="show all requests with this id, not only the latest one")
    add_service_options(parser)
    parser.add_argument("--json", action="store_true", help="print the answer of GET /baton/receipts/ID")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    unknown = f"no kept receipt has the id {arguments.id}: was it long ago, or is ingress.keep_receipts 0?"
    path = f"/baton/receipts/{quote(arguments.id, safe='')}"
    answer = ask(arguments, path, TraceAnswer, explained={RECEIPT_NOT_FOUND: unknown})
    if answer is None:
        return 1
    found, body = answer
    if arguments.json:
        print(json.dumps(json.loads(body), indent=2))
        return 0
    shown = found.waterfalls if arguments.all else found.waterfalls[:1]
    width = max(LEAST_WIDTH, shutil.get_terminal_size((LEAST_WIDTH, 0)).columns)
    print("\n\n".join(text_of(waterfall, width) for waterfall in shown))
    if len(found.waterfalls) > len(shown):
        print(f"{len(found.waterfalls) - 1} earlier ones have the same id: --all shows them", file=sys.stderr)
    return 0


def text_of(waterfall: Waterfall, width: int = LEAST_WIDTH) -> str:
    """For a terminal of `width` columns."""
    return "\n".join(visible(line).rstrip() for line in [*_facts(waterfall), "", *_rows(waterfall, width)])


def _facts(waterfall: Waterfall) -> list[str]:
    named = f"{waterfall.request_id} (x-request-id {waterfall.http_request or 'none'})"
    ended = waterfall.outcome + (f": {waterfall.error}" if waterfall.error else "")
    lines = [
        f"request    {named}",
        f"outcome    {ended}, class {waterfall.slo_class}, {waterfall.duration_ms:.1f} ms",
        f"path       {waterfall.path or 'none'}: {waterfall.why}",
        f"tokens     {waterfall.prompt_tokens} in, {waterfall.output_tokens} out",
        _compared("TTFT", waterfall.ttft_ms, waterfall.predicted_ttft_ms, waterfall.target_ttft_ms),
        *_unmeasured(waterfall),
        _compared("TPOT", waterfall.tpot_ms, waterfall.predicted_tpot_ms, waterfall.target_tpot_ms),
    ]
    for role, sources in waterfall.sources.items():
        lines.append(f"{role:10} " + ", ".join(f"{number} {source}" for source, number in sources.items() if number))
    return lines


def _unmeasured(waterfall: Waterfall) -> list[str]:
    """How much of the TTFT no stage has measured."""
    left, whole = waterfall.unmeasured_ttft_ms, waterfall.ttft_ms
    if left is None or not whole:
        return []
    return [f"{'':10} {left:.1f} ms of it ({left / whole:.1%}) are not measured"]


def _compared(name: str, came: float | None, predicted: float | None, target: float | None) -> str:
    parts = [f"{name:10} {'none' if came is None else f'{came:.1f} ms'}"]
    if predicted is not None:
        parts.append(f"predicted {predicted:.1f} ms")
        if came is not None and predicted > 0:
            parts[-1] += f" ({came / predicted:.2f} times that)"
    if target is not None:
        parts.append(f"objective {target:.1f} ms" + ("" if came is None or came <= target else " MISSED"))
    return ", ".join(parts)


def _rows(waterfall: Waterfall, width: int) -> list[str]:
    columns = min(MOST_BAR, max(LEAST_BAR, width - NAME_COLUMNS - PLACE_COLUMNS - 24))
    last_ms = max([waterfall.duration_ms, *(row.end_ms for row in waterfall.rows)]) or 1.0
    lines, is_marked = [], waterfall.ttft_ms is None
    for row in waterfall.rows:
        if not is_marked and not row.is_before_first_token:
            lines.append(f"{'-- first token':{NAME_COLUMNS + PLACE_COLUMNS + 2}}{waterfall.ttft_ms:>9.1f}")
            is_marked = True
        lines.append(_line(row, columns, last_ms))
    if not all(row.is_measured for row in waterfall.rows):
        lines += ["", f"{NOT_MEASURED} not measured: what is left between measured stages"]
    return lines


def _line(row: WaterfallRow, columns: int, last_ms: float) -> str:
    begin = min(columns - 1, int(columns * row.start_ms / last_ms))
    end = max(begin + 1, round(columns * row.end_ms / last_ms))
    bar = (" " * begin + "#" * (end - begin))[:columns]
    name = row.name if row.attempt < 2 else f"{row.name} #{row.attempt}"
    name = name if row.is_measured else f"{NOT_MEASURED}{name}"
    notes = " ".join(f"{key}={value}" for key, value in row.notes.items())
    length = f"{row.start_ms:9.1f} +{row.end_ms - row.start_ms:<9.1f}"
    return f"{name:{NAME_COLUMNS}} {row.place[:PLACE_COLUMNS]:{PLACE_COLUMNS}} {length} {bar:{columns}} {notes}"
