"""Asks a Prometheus."""

from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit

from cluster.http_answer import answer_of
from cluster.observability.render.series import NotPrometheus, QueryRefused, Series, series_of
from cluster.observability.render.window import Window

QUERY_TIMEOUT_S = 30.0
"""Time in which the whole answer to a query must come, in seconds. Longer delays the error of one that hangs; shorter
fails on a busy one, or on a long range.
"""
MOST_ANSWER_BYTES = 64 << 20
"""Most bytes of an answer that are read. A thousand series of a page have some 10 MB. Fewer fails in large clusters;
more lets whatever answers fill the memory.
"""
MOST_ERROR_CHARS = 300
"""Characters of an error that are shown. More can hide what is before them; fewer cut what Prometheus explains."""


class PrometheusFailed(RuntimeError):
    """There is no answer. The message says why, in one line."""


class Prometheus:
    def __init__(self, url: str) -> None:
        """`url`: its address, with the path before `/api/v1` if it has one.

        Raises ValueError if it is no such address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ValueError(f"{url!r} is no address such as http://127.0.0.1:9090")
        self.url = url.rstrip("/")

    def series(self, query: str, window: Window) -> list[Series]:
        """The series of a query in a window."""
        asked = {"query": query, "start": window.start, "end": window.end, "step": window.step}
        try:
            return series_of(self._answer(f"{self.url}/api/v1/query_range?{urlencode(asked)}"), window)
        except QueryRefused as refused:
            raise PrometheusFailed(_line(f"{self.url} refuses a query: {refused}: {query}")) from refused
        except NotPrometheus as wrong:
            raise PrometheusFailed(_line(f"{self.url} does not answer as Prometheus does: {wrong}")) from wrong
        except (OSError, HTTPException, ValueError) as failed:
            cause = str(getattr(failed, "reason", failed)) or type(failed).__name__
            raise PrometheusFailed(_line(f"no Prometheus answers at {self.url} ({cause})")) from failed

    def _answer(self, url: str) -> bytes:
        """The body of the answer, which may be an error in Prometheus's form."""
        try:
            return answer_of(url, QUERY_TIMEOUT_S, MOST_ANSWER_BYTES)
        except HTTPError as error:
            if error.headers.get_content_type() != "application/json":
                raise NotPrometheus(f"{error.code} {error.reason}") from error
            return error.read()


def _line(text: str) -> str:
    """The text in one line, without what moves the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MOST_ERROR_CHARS]
