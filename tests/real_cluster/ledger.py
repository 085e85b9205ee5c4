"""The ledger of a running service beside the counters of its engines."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from prometheus_client.parser import text_string_to_metric_families

from api.metering.differences import EngineCount
from api.metering.engine_counts import GENERATED, UNCLAIMED, UNREAD
from cluster.services.postgres import POSTGRES_FOLDER, LocalPostgres
from tests.real_cluster.service import Service

OF_WORKERS = """
SELECT worker, sum(tokens)::bigint FROM (
  SELECT worker, worker_tokens AS tokens FROM usage_ledger
  UNION ALL SELECT prefill_worker, prefill_tokens FROM usage_ledger) AS of_worker
WHERE worker <> '' GROUP BY worker
"""
STAYS_S = 0.5
"""Time for which what is settled does not change: ten times as long as rows wait to be written."""
OPEN = "SELECT count(*) FROM usage_openings"
RUNNING = f"""
{OPEN} o WHERE EXISTS (
  SELECT FROM usage_writers w WHERE w.ingress = o.ingress AND w.seen_at > now() - interval '12 s')
"""
"""An ingress says every 10 s that it lives."""


class Ledger:
    def __init__(self, service: Service, url: str) -> None:
        self._service = service
        self._url = url

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SELECT set_config('app.tenant_id', '*', false)")
            return connection.execute(query, values).fetchall()

    def rows_of(self, key: str) -> list[tuple[Any, ...]]:
        columns = "tenant_id, end_user, outcome, prompt_tokens, generated_tokens"
        return self.ask(f"SELECT {columns} FROM usage_ledger WHERE key_id = %s ORDER BY id, attempt", key)

    def num_open(self) -> int:
        """Requests that run, and those of ingress processes that are gone and have not been ended yet."""
        return int(self.ask(OPEN)[0][0])

    def num_running(self) -> int:
        """Requests of ingress processes that live."""
        return int(self.ask(RUNNING)[0][0])

    def beyond(self) -> dict[str, int]:
        """Tokens that each engine has counted beyond what the ledger has. An ingress that was killed has left some."""
        known = {worker: int(tokens) for worker, tokens in self.ask(OF_WORKERS)}
        return {count.worker: count.tokens - count.unread - known.get(count.worker, 0) for count in self._counts()}

    def settled(self, timeout_s: float, expected: Mapping[str, int] | None = None) -> dict[str, int]:
        """`beyond` of all engines, when no request runs and all rows are written, and it is as expected, 0 for workers
        that are not named. Without an expectation, once it stays. Raises AssertionError if it is not within this time.
        """
        until, before = time.monotonic() + timeout_s, None
        while True:
            found = self.beyond()
            wanted = before if expected is None else {worker: expected.get(worker, 0) for worker in found}
            is_settled = not self.num_running() and self._service.is_idle()
            if is_settled and len(found) == self._service.num_engines and found == wanted:
                return found
            is_late = time.monotonic() > until
            assert not is_late, f"beyond the ledger: {found}, expected: {wanted}, at rest: {is_settled}"
            before = found
            time.sleep(STAYS_S)  # noqa: TID251

    def _counts(self) -> list[EngineCount]:
        page = self._service.of_operators("/metrics").raise_for_status().text
        generated: dict[str, int] = {}
        unread: Counter[str] = Counter()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == GENERATED:
                    generated[sample.labels["replica"]] = int(sample.value)
                elif sample.name == UNREAD:
                    unread[sample.labels["worker"]] += int(sample.value)
                elif sample.name == UNCLAIMED:
                    unread[sample.labels["replica"]] += int(sample.value)
        return [EngineCount(worker, tokens, 0.0, unread[worker]) for worker, tokens in generated.items()]


@contextmanager
def ledger_of(service: Service) -> Iterator[Ledger]:
    """With the PostgreSQL that the service runs."""
    server = LocalPostgres(service.data / POSTGRES_FOLDER)
    try:
        yield Ledger(service, server.start())
    finally:
        server.stop()
