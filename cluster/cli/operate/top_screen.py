"""The screen of `baton top`: the document that the page polls (api/web/live_document.py), for a terminal.

Texts come from a service, and parts of them from its clients. None of them is read as control characters, or as markup
by a console that reads none (`console_of`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.web.live_document import ClusterLines, LinkLine, LiveDocument
from api.web.recent_requests import ClassLine, RequestLine, StageLine
from cluster.cli.operate.status_text import lasting
from cluster.cli.operate.visible import visible
from cluster.messages.ids import Path, Pool
from cluster.messages.operations import WorkerCondition, WorkerStatus
from cluster.slo import Result

MOST_WORKERS, MOST_REQUESTS, MOST_LINKS = 12, 12, 5
"""Rows of workers, of requests, and of links that hand nothing over. A screen has 24 to 60 lines: more hides what
stands below; fewer hides workers and requests of small services.
"""
LEAST_REQUESTS = 3
"""Rows of requests that are drawn on the lowest screen. Their place is taken from the workers."""
FIXED_LINES = 15
"""Lines that all but the rows of workers, requests and links take."""
BAR_COLUMNS = 28
"""Columns of the bar of a request. More shows shorter stages; fewer leaves place for other columns."""
WAIT, PREFILL, MOVE, DECODE, OTHER = "yellow", "blue", "magenta", "green", "bright_black"
BARS = {WAIT: "w", PREFILL: "P", MOVE: "m", DECODE: "D", OTHER: "-"}
"""The colour of each kind of stage, and its letter for terminals and readers without colours."""
LEGEND = {WAIT: "waits", PREFILL: "prefill", MOVE: "moves", DECODE: "decode", OTHER: "ingress and placement"}
LEAST_ID_COLUMNS, MOST_ID_COLUMNS = 12, 40
"""Columns of a request's id. `baton trace` wants all of it, and a new id has 36 characters. A higher least leaves less
place for other columns; a lower one makes ids alike. A higher most helps ids of clients alone.
"""
WIDE_COLUMNS = 120
"""Columns from which a terminal has place for all columns of the requests. More shows fewer figures in terminals of
medium width; fewer cuts columns off.
"""
OTHER_COLUMNS = {False: 68, True: 108}
"""Columns of a request's row beside its id, in a narrow and in a wide terminal."""
_KINDS = {
    **dict.fromkeys(("admit", "queue", "pause", "wait", "hold", "engine_queue"), WAIT),
    "prefill": PREFILL,
    **dict.fromkeys(("connect", "send", "receive", "network", "deliver", "output", "promise"), MOVE),
    **dict.fromkeys(("decode", "first_decode"), DECODE),
}
_PULL = "pull"
"""How the names of all stages of a pull begin."""


class Screen(NamedTuple):
    """The lines and columns of a terminal."""

    lines: int
    columns: int


def console_of(stream: TextIO | None = None, **options: Any) -> Console:
    """A console that prints texts as they are. `options`: those of Console."""
    return Console(file=stream, markup=False, emoji=False, highlight=False, **options)


def screen_of(document: LiveDocument, screen: Screen) -> Group:
    parts = list[RenderableType]([_head(document)])
    known = document.cluster.known
    room = max(0, screen.lines - FIXED_LINES)
    num_requests = min(MOST_REQUESTS, max(LEAST_REQUESTS, room // 2))
    if known is not None:
        parts += [_pools(known), _workers(known, min(MOST_WORKERS, max(1, room - num_requests)))]
        parts += [Text(line, "yellow") for line in _doubts(known)]
    if document.requests.num_kept:
        parts += [_classes(document), _requests(document.requests.last[:num_requests], screen.columns)]
    else:
        parts.append(Text("No receipts are kept (ingress.keep_receipts is 0), so there are no latencies."))
    return Group(*parts)


def _head(document: LiveDocument) -> Text:
    cluster = document.cluster
    head = Text(visible(f"Baton  {document.model}  replica {document.replica}"), "bold")
    if cluster.error is not None:
        since = "Nothing is known yet" if cluster.age_s is None else f"Last known: {lasting(cluster.age_s)} ago"
        head.append("\n" + visible(f"The Scheduler does not answer: {cluster.error}. {since}."), "bold red")
    if (known := cluster.known) is not None:
        waiting = f", for up to {known.oldest_wait_s:.1f} s" if known.num_waiting else ""
        links = f"{known.num_links} links proved, {known.num_unproved} not"
        head.append(f"\n{known.num_open} open, {known.num_waiting} waiting{waiting}; {links}", "not bold")
        if known.cells_away:
            head.append("\n" + visible(f"Cells that are away: {', '.join(known.cells_away)}"), "bold red")
    return head


def _pools(known: ClusterLines) -> Table:
    table = _table(("pool", "workers", "not ready", "placed", "most", "KV mean", "KV most"))
    for pool in known.pools:
        style = "" if pool.num_workers > pool.num_not_ready else "red"
        cells = (pool.num_workers, pool.num_not_ready, pool.num_placed, pool.max_requests)
        usages = (f"{pool.mean_kv_usage:.0%}", f"{pool.most_kv_usage:.0%}")
        table.add_row(pool.pool, *map(str, cells), *usages, style=style)
    return table


def _workers(known: ClusterLines, most: int) -> RenderableType:
    table = _table(("worker", "pool", "state", "placed", "running", "waiting", "leases", "KV", "links"))
    for worker in known.workers[:most]:
        table.add_row(*map(visible, _worker(worker)), style=_style(worker))
    num_hidden = known.num_workers - min(most, len(known.workers))
    if not num_hidden:
        return table
    return Group(table, Text(f"and {num_hidden} more, which have less to do (baton status --json shows all)", "dim"))


def _worker(worker: WorkerStatus) -> tuple[str, ...]:
    return (
        worker.worker,
        worker.pool,
        worker.condition,
        f"{worker.num_placed}/{worker.max_requests}",
        f"{worker.num_running}",
        f"{worker.num_waiting}",
        f"{worker.num_leases}" if worker.pool is Pool.PREFILL else "-",
        f"{worker.kv_usage:.0%}",
        f"{worker.num_links}",
    )


def _style(worker: WorkerStatus) -> str:
    match worker.condition:
        case WorkerCondition.READY:
            return ""
        case WorkerCondition.SUSPECTED | WorkerCondition.QUARANTINED | WorkerCondition.STALE:
            return "red"
        case _:
            return "yellow"


def _doubts(known: ClusterLines) -> Iterator[str]:
    doubtful = [link for link in known.links if link.doubt]
    for link in doubtful[:MOST_LINKS]:
        yield visible(_doubt(link))
    num_hidden = known.num_unproved + known.num_distrusted - min(MOST_LINKS, len(doubtful))
    if num_hidden > 0:
        yield f"and {num_hidden} more links (baton why explains them)"


def _doubt(link: LinkLine) -> str:
    return f"link {link.prefill} -> {link.decode}: {link.doubt}"


def _classes(document: LiveDocument) -> Group:
    requests = document.requests
    table = _table(("class", "requests", "goodput", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "p99"))
    paths = ", ".join(f"{path} {number}" for path, number in sorted(requests.paths.items()))
    lately = f"Last {lasting(requests.covers_s)} of this replica"
    head = Text(f"{lately}: {requests.good_per_s:.2f} good requests/s; {paths or 'none'}")
    for line in requests.classes:
        table.add_row(line.slo_class, str(line.num), _goodput(line), *_times(line.ttft_s), *_times(line.tpot_s))
    return Group(head, table)


def _goodput(line: ClassLine) -> str:
    return f"{line.num_good / line.num:.1%}" if line.num else "-"


def _times(percentiles: Sequence[float]) -> list[str]:
    return [milliseconds(value) for value in percentiles] or ["-", "-", "-"]


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _requests(requests: Sequence[RequestLine], columns: int) -> Group:
    head = Text("Their time: ")
    for kind, meaning in LEGEND.items():
        head.append(BARS[kind], f"{kind} reverse").append(f" {meaning}  ")
    is_wide = columns >= WIDE_COLUMNS
    table = _table(("last requests", "path", "result", "TTFT", "TPOT", *(_MORE if is_wide else ()), "time"))
    id_columns = min(MOST_ID_COLUMNS, max(LEAST_ID_COLUMNS, columns - OTHER_COLUMNS[is_wide]))
    longest_s = max((request.duration_s for request in requests), default=0.0)
    for request in requests:
        table.add_row(
            visible(request.http_request or request.request_id)[:id_columns],
            request.path or "none",
            Text(request.result or request.outcome, "" if request.result is Result.GOOD else "red"),
            milliseconds(request.ttft_s),
            milliseconds(request.tpot_s),
            *(_more(request) if is_wide else ()),
            bar_of(request.stages, longest_s),
        )
    return Group(head, table)


_MORE = ("predicted", "class", "in", "cached", "out")
"""Further columns in a wide terminal: the predicted TTFT, and tokens."""


def _more(request: RequestLine) -> tuple[str, ...]:
    tokens = (str(request.num_prompt_tokens), _cached(request), str(request.num_output_tokens))
    return (milliseconds(request.predicted_ttft_s), request.slo_class, *tokens)


def _cached(request: RequestLine) -> str:
    """The share of the prompt that came from a cache of the worker that prefilled it."""
    sources = request.prefill_sources if request.path is Path.PREFILL_DECODE else request.sources
    if sources is None or not request.num_prompt_tokens:
        return "-"
    return f"{(sources.local + sources.offloaded) / request.num_prompt_tokens:.0%}"


def bar_of(stages: Sequence[StageLine], longest_s: float) -> Text:
    """What the request did in each part of its time; the bar of `longest_s` has BAR_COLUMNS columns. A column shows the
    stage in which most of its time went. Of stages that go on side by side, it shows the one that began last.
    """
    bar = Text()
    for column in range(BAR_COLUMNS):
        begin_s, end_s = (longest_s * edge / BAR_COLUMNS for edge in (column, column + 1))
        shares = [(min(stage.end_s, end_s) - max(stage.start_s, begin_s), stage.start_s, stage) for stage in stages]
        share, _, stage = max(shares, key=lambda share: share[:2], default=(0.0, 0.0, None))
        if stage is None or share <= 0:
            bar.append(" ")
        else:
            kind = _kind(stage.name)
            bar.append(BARS[kind], f"{kind} reverse")
    bar.rstrip()
    return bar


def _kind(stage: str) -> str:
    return MOVE if stage.startswith(_PULL) else _KINDS.get(stage, OTHER)


def _table(names: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    return table
