"""Sends one request of a workload, again after refusals if it may, and writes down what became of it."""

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from api.wire.slo import tier_of
from cluster.load.client.answer import BrokenAnswer, TooLargeAnswer
from cluster.load.client.client import LoadClient
from cluster.load.client.connection import OK, CutShort, LoadExchange
from cluster.load.client.endpoint import Api, Endpoint, body_of
from cluster.load.prompts.texts import PromptWriter
from cluster.load.record import LoadEnding, LoadRecord
from cluster.load.target import line_of, text_of
from cluster.messages.ids import SloClass
from cluster.simulation.traffic.workload import Arrival

REFUSALS = frozenset({429, 503})
MOST_RETRY_AFTER_S = 300.0
"""Longest Retry-After that is obeyed, in seconds. Longer lets an endpoint hold a load up; shorter comes back too early.
"""
DEFAULT_RETRY_AFTER_S = 1.0
"""Time until a retry where a refusal has no Retry-After, in seconds. Longer waits for nothing; shorter presses on an
endpoint that is full.
"""


class RequestForm(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests of a load have in common."""

    api: Api
    model: str
    fields: dict[str, Any]
    """Further fields of the body."""
    headers: dict[str, str]
    slo_class: SloClass | None = None
    """The class of all requests. None leaves each with that of its row."""
    timeout_s: float
    """Time for each try, in seconds."""
    max_retries: int = 0


class Sender:
    def __init__(self, client: LoadClient, endpoint: Endpoint, form: RequestForm, writer: PromptWriter) -> None:
        self._client, self._endpoint, self._form, self._writer = client, endpoint, form, writer
        self.tokens_seen = 0
        """Tokens of the answers that have ended."""

    def class_of(self, row: Arrival) -> SloClass:
        return self._form.slo_class or row.slo_class

    def encoded(self, row: Arrival) -> bytes:
        """The bytes of a request."""
        form, slo_class = self._form, self.class_of(row)
        tier: Mapping[str, Any] = {}
        if slo_class is not SloClass.STANDARD or form.slo_class is not None:
            tier = {"service_tier": tier_of(slo_class)}
        body = body_of(form.api, form.model, self._writer.messages(row.pieces), row.num_output, {**tier, **form.fields})
        return self._endpoint.post(form.api.path, form.headers, body)

    async def send(self, number: int, row: Arrival, request: bytes, due: float, started: float) -> LoadRecord:
        """Send a request that was due at `due` of a load that began at `started`, both of the performance counter."""
        sent = time.perf_counter()
        retry_after_s: float | None = None
        for num_tries in range(1, self._form.max_retries + 2):
            exchange, ending, error = await self._try(request)
            if ending is not LoadEnding.REFUSED:
                break
            retry_after_s = retry_after(exchange.headers.get(b"retry-after", b""))
            if num_tries <= self._form.max_retries:
                wait_s = DEFAULT_RETRY_AFTER_S if retry_after_s is None else retry_after_s
                await asyncio.sleep(min(wait_s, MOST_RETRY_AFTER_S))
        stream = exchange.stream
        ttft_s, e2e_s = (None if at is None else at - due for at in (stream.first_at, stream.last_at))
        tokens = stream.num_output
        self.tokens_seen += tokens or 0
        is_timed = ttft_s is not None and e2e_s is not None and tokens is not None and tokens > 1
        return LoadRecord(
            number=number,
            session=row.session,
            slo_class=self.class_of(row),
            due_s=due - started,
            late_s=sent - due,
            ending=ending,
            status=exchange.status,
            error=line_of(error),
            ttft_s=ttft_s,
            tpot_s=(e2e_s - ttft_s) / (tokens - 1) if is_timed and e2e_s and ttft_s and tokens else None,
            e2e_s=e2e_s,
            ended_s=time.perf_counter() - started,
            gaps=stream.gaps_s.tobytes(),
            planned_prompt=row.num_prompt,
            num_prompt=stream.num_prompt,
            num_cached=stream.num_cached,
            planned_output=row.num_output,
            num_output=tokens,
            retry_after_s=retry_after_s,
            num_tries=num_tries,
        )

    async def _try(self, request: bytes) -> tuple[LoadExchange, LoadEnding, str]:
        exchange = LoadExchange(request, asyncio.get_running_loop().create_future())
        try:
            await self._client.run(exchange, self._form.timeout_s)
        except TimeoutError:
            return exchange, LoadEnding.TIMED_OUT, f"not whole within {self._form.timeout_s:g} s"
        except TooLargeAnswer as error:
            return exchange, LoadEnding.TOO_LARGE, str(error)
        except BrokenAnswer as error:
            return exchange, LoadEnding.BROKEN, str(error)
        except CutShort as error:
            return exchange, LoadEnding.CUT if exchange.num_bytes else LoadEnding.UNREACHABLE, str(error)
        except OSError as error:
            return exchange, LoadEnding.UNREACHABLE, str(error) or repr(error)
        except asyncio.CancelledError:
            return exchange, LoadEnding.STOPPED, "stopped"
        return exchange, *_ending_of(exchange)


def _ending_of(exchange: LoadExchange) -> tuple[LoadEnding, str]:
    """How an exchange ended that HTTP has nothing against."""
    if exchange.status in REFUSALS:
        return LoadEnding.REFUSED, text_of(exchange.whole)
    if exchange.status != OK:
        return LoadEnding.HTTP_ERROR, text_of(exchange.whole)
    if not exchange.is_streamed:
        return LoadEnding.BROKEN, f"no event stream: {text_of(exchange.whole)}"
    if exchange.stream.error is not None:
        return LoadEnding.ERROR_EVENT, exchange.stream.error
    if not exchange.stream.is_complete:
        return LoadEnding.CUT, "the stream ended before the answer"
    return LoadEnding.FINISHED, ""


def retry_after(value: bytes) -> float | None:
    """Seconds of a Retry-After, which is a number or a date. None if it is neither."""
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
