"""Metrics of kept conversations: engines keep their KV blocks for the next prompt (docs/retention.md)."""

from prometheus_client import Counter, Gauge

from cluster.messages.ids import Pool
from cluster.messages.retention import RetentionCounts

KEPT_BLOCKS = Gauge(
    "baton_kept_kv_blocks",
    "KV blocks that this worker's engine keeps for conversations that wait for tools, in use or free, when an answer "
    "last called tools.",
    ["pool"],
)
KEPT_HITS = Counter(
    "baton_kept_kv_block_hits",
    "Kept KV blocks that the next prompt of their conversation began with.",
    ["pool"],
)
KEPT_ENDS = Counter(
    "baton_kept_conversations",
    "Kept conversations by their outcome: returned; expired (not back in time); dropped (for others, because of "
    "kept_share); and late (back after they were expired or dropped, which counts beside that).",
    ["pool", "outcome"],
)
KEPT_LOSSES = Counter(
    "baton_kept_kv_blocks_given_up",
    "KV blocks by why they were given up: taken (kept, and needed by other requests when no others were free), or dead "
    "(of a state of a conversation that its next prompt did not have any more).",
    ["pool", "why"],
)


class RetentionMetrics:
    """Shows the counts of one engine, which only grow."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shown = RetentionCounts()

    def show(self, counts: RetentionCounts) -> None:
        before, self._shown = self._shown, counts
        KEPT_BLOCKS.labels(self._pool).set(counts.kept_blocks)
        KEPT_HITS.labels(self._pool).inc(max(0, counts.hit_blocks - before.hit_blocks))
        for outcome in ("returned", "expired", "dropped", "late"):
            KEPT_ENDS.labels(self._pool, outcome).inc(max(0, getattr(counts, outcome) - getattr(before, outcome)))
        for why in ("taken", "dead"):
            grown = getattr(counts, f"{why}_blocks") - getattr(before, f"{why}_blocks")
            KEPT_LOSSES.labels(self._pool, why).inc(max(0, grown))
