"""The table of links that `baton probe` prints: what the ingress answers, and how it reads. Pure."""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from cluster.messages.ids import CellName, Pool, WorkerId
from cluster.messages.transport import EngineVariable, Transport
from cluster.messages.views import ClusterView, WorkerView
from kvtransfer.transport.topology import between


class LinkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One prefill-decode pair."""

    prefill: WorkerId
    prefill_node: str
    decode: WorkerId
    decode_node: str
    transport: Transport | None
    """The fastest transport that both workers allow. None if UCX decides, by what `why` names."""
    why: str
    is_proved: bool
    """True if a real handoff has worked, so that requests are placed on the pair."""
    latency_s: float | None
    bytes_per_s: float | None
    """None if the link is not measured."""
    cell: CellName | UnsetType = UNSET
    """The cell of both workers, if there are several cells."""


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """The settings with which the engine of a worker was started."""

    worker: WorkerId
    pool: Pool
    node: str
    settings: tuple[EngineVariable, ...]
    cell: CellName | UnsetType = UNSET


class LinkTable(msgspec.Struct, frozen=True, kw_only=True):
    links: list[LinkRow]
    workers: list[WorkerRow]
    cells_away: list[CellName] | UnsetType = UNSET
    """The cells that the table lacks, because their Schedulers do not answer."""


def table_of(view: ClusterView) -> LinkTable:
    """Every pair of live workers of a cell, proved or not."""
    prefills = [worker for worker in view.workers if worker.pool is Pool.PREFILL]
    decodes = [worker for worker in view.workers if worker.pool is Pool.DECODE]
    pairs = [(prefill, decode) for prefill in prefills for decode in decodes if prefill.cell == decode.cell]
    workers = [
        WorkerRow(worker=w.worker, pool=w.pool, node=w.host, settings=w.transport.settings, cell=w.cell)
        for w in view.workers
    ]
    links = [_row(prefill, decode) for prefill, decode in pairs]
    return LinkTable(links=links, workers=workers, cells_away=view.cells_away)


def _row(prefill: WorkerView, decode: WorkerView) -> LinkRow:
    transport, why = between(prefill.transport, decode.transport, same_node=prefill.host == decode.host)
    speed = decode.links.get(prefill.worker)
    return LinkRow(
        prefill=prefill.worker,
        prefill_node=prefill.host,
        decode=decode.worker,
        decode_node=decode.host,
        transport=transport,
        why=why,
        is_proved=prefill.worker in decode.links,
        latency_s=speed.latency_s if speed else None,
        bytes_per_s=speed.bytes_per_s if speed else None,
        cell=decode.cell,
    )


def render(table: LinkTable) -> str:
    """For a terminal: the links, then the settings and why each was chosen."""
    if not table.workers:
        return "no worker reports to the Scheduler yet"
    header: tuple[str, ...] = ("prefill", "node", "decode", "node", "latency", "bandwidth", "transport", "why")
    rows: list[tuple[str, ...]] = [
        (r.prefill, r.prefill_node, r.decode, r.decode_node, *_speed(r), r.transport or "UCX decides", r.why)
        for r in table.links
    ]
    if table.cells_away is not UNSET:
        header = ("cell", *header)
        rows = [(str(link.cell), *row) for link, row in zip(table.links, rows, strict=True)]
    links = _aligned([header, *rows]) if rows else ["no links: both pools need a worker"]
    return "\n".join([*links, *(line for worker in table.workers for line in ("", *_settings(worker)))])


def _speed(row: LinkRow) -> tuple[str, str]:
    if not row.is_proved:
        return "not proved", "-"
    if row.latency_s is None or row.bytes_per_s is None:
        return "not measured", "-"
    return f"{row.latency_s * 1e3:.2f} ms", f"{row.bytes_per_s / 1e9:.2f} GB/s"


def _settings(worker: WorkerRow) -> list[str]:
    rows = [(f"  {s.name}", "(unset)" if s.value is None else s.value, s.why) for s in worker.settings]
    return [f"{worker.pool} worker {worker.worker} on {worker.node}", *_aligned(rows)]


def _aligned(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
