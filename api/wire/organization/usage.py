"""GET /v1/organization/usage/completions and /v1/organization/costs: their parameters, and their bodies. GET
/admin/usage and /admin/costs are the same over all tenants (`of_all`), which they can tell apart.

Buckets are whole minutes, hours or days of UTC. `start_time` is rounded down to the begin of its bucket. A page has at
most `limit` buckets, and the cursor of the next page is the begin of its first bucket. If that is a bucket of which the
page before has the first results, the cursor also has the group of the last of them.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from cluster.errors import InvalidRequest

GROUPS = ("project_id", "user_id", "api_key_id", "model")
"""What a client may group by. `user_id` is the end user that requests name."""
WIDTHS = {"1m": 60, "1h": 3600, "1d": 86400}
"""Seconds of a bucket."""
DEFAULT_BUCKETS = {"1m": 60, "1h": 24, "1d": 7}
MAX_BUCKETS = {"1m": 1440, "1h": 168, "1d": 31}
"""Buckets of a page, as OpenAI has them. More takes PostgreSQL longer; fewer takes a client more requests."""
MAX_COST_BUCKETS = 180
"""Buckets of a page of costs by day, as OpenAI has them."""
MAX_RESULTS = 10_000
"""Results of a page in all its buckets. More takes memory of the ingress, about 500 bytes each; fewer makes pages of
tenants with many end users end earlier, and each page sums the ledger up anew.
"""
MAX_FILTER, MAX_FILTER_CHARACTERS = 100, 512
"""Values of one filter, and characters of each. More makes slower queries; fewer takes a client more requests."""
MAX_TIME = 1 << 36
"""Largest time in a query, in seconds of Unix time: the year 4147. Later ones cannot be stored in a row."""
MICROS = 1_000_000
TENANT_GROUP, TENANT_FILTER = "tenant_id", "tenant_ids"
"""What operators may group and filter by, beside what clients may."""
_Group = tuple[str, str, str, str, str, str]
LISTS = {"project_ids", "user_ids", "api_key_ids", "models", "group_by"}
SINGLE = {"start_time", "end_time", "bucket_width", "limit", "page"}
"""Query parameters of a tenant: those that may have several values, and those that have one."""


class UsageQuery(NamedTuple):
    start: int
    """Begin of the first bucket, in seconds of Unix time."""
    end: int
    """End of the time, exclusive."""
    width_s: int
    num_buckets: int
    group_by: tuple[str, ...]
    project_ids: list[str] | None = None
    """None for all. So are the next four."""
    user_ids: list[str] | None = None
    api_key_ids: list[str] | None = None
    models: list[str] | None = None
    tenant_ids: list[str] | None = None
    of_all: bool = False
    """Whether it is about all tenants, and results name theirs."""
    max_rows: int = MAX_RESULTS
    after: tuple[str, ...] = ()
    """The group after which the first bucket begins (`Sums.group`). Empty for the whole bucket."""

    def on_page(self) -> "UsageQuery":
        """The same query for the buckets of its page alone."""
        return self._replace(end=min(self.end, self.start + self.num_buckets * self.width_s))


class Sums(NamedTuple):
    """The usage of one bucket, or of one group in it. What is not grouped by is None."""

    bucket: int
    """Begin of the bucket, in seconds of Unix time."""
    tenant_id: str | None
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    currency: str | None
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    reasoning_tokens: int
    cost_micros: int
    requests: int
    lost: int
    """Requests whose ingress died, of which nothing else is known."""

    @property
    def group(self) -> tuple[str, ...]:
        """What the results of a bucket are ordered by."""
        names = (self.tenant_id, self.project_id, self.user_id, self.api_key_id, self.model, self.currency)
        return tuple(name or "" for name in names)


def usage_query(pairs: Iterable[tuple[str, str]], now: float, *, of_all: bool = False) -> UsageQuery:
    """The query of a client for usage. `pairs`: names and values of the query string; `now`: Unix time. Raises
    InvalidRequest.
    """
    return _query(pairs, now, MAX_BUCKETS, of_all=of_all)


def costs_query(pairs: Iterable[tuple[str, str]], now: float, *, of_all: bool = False) -> UsageQuery:
    """The query of a client for costs. The sums are also by currency. Raises InvalidRequest."""
    query = _query(pairs, now, MAX_BUCKETS | {"1d": MAX_COST_BUCKETS}, of_all=of_all)
    return query._replace(group_by=(*query.group_by, "currency"))


def usage_page(query: UsageQuery, sums: Sequence[Sums]) -> dict[str, Any]:
    """The body of a page of usage. `sums`: of `query.on_page()`."""
    return _page(query, sums, _usage)


def costs_page(query: UsageQuery, sums: Sequence[Sums]) -> dict[str, Any]:
    """The body of a page of costs."""
    return _page(query, sums, _cost)


def _query(pairs: Iterable[tuple[str, str]], now: float, most: Mapping[str, int], *, of_all: bool) -> UsageQuery:
    groups = (TENANT_GROUP, *GROUPS) if of_all else GROUPS
    single, lists = _parameters(pairs, LISTS | {TENANT_FILTER} if of_all else LISTS)
    width = single.get("bucket_width", "1d")
    if width not in WIDTHS:
        raise InvalidRequest("bucket_width must be 1m, 1h or 1d", "bucket_width", "invalid_value")
    width_s = WIDTHS[width]
    if "start_time" not in single:
        raise InvalidRequest(
            "start_time is missing: give the begin of the time, in Unix seconds",
            "start_time",
            "missing_required_parameter",
        )
    start = _time(single, "start_time")
    end = _time(single, "end_time") if "end_time" in single else int(now) + 1
    if end <= start:
        raise InvalidRequest("end_time must be after start_time", "end_time", "invalid_value")
    end = max(start + 1, min(end, int(now) + 1))  # no pages of buckets that have not begun
    first = start - start % width_s
    after: tuple[str, ...] = ()
    if "page" in single:
        first, after = _cursor(single["page"], first, end, width_s)
    if wrong := set(lists["group_by"]) - set(groups):
        text = f"group_by has '{min(wrong)[:MAX_FILTER_CHARACTERS]}', and may have {', '.join(groups)}"
        raise InvalidRequest(text, "group_by", "invalid_value")
    by = tuple(group for group in groups if group in lists["group_by"])
    return UsageQuery(
        first,
        end,
        width_s,
        _limit(single, width, most),
        by,
        lists["project_ids"] or None,
        lists["user_ids"] or None,
        lists["api_key_ids"] or None,
        lists["models"] or None,
        lists.get(TENANT_FILTER) or None,
        of_all,
        after=after,
    )


def _parameters(pairs: Iterable[tuple[str, str]], names: Set[str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The parameters with one value, and those with several: `models=a&models=b`, `models[]=a`, or `models=a,b` for
    group_by. `names`: of those with several. Raises InvalidRequest.
    """
    single: dict[str, str] = {}
    lists: dict[str, list[str]] = {name: [] for name in names}
    for given, value in pairs:
        name = given.removesuffix("[]")
        if name not in SINGLE | names or (name not in names and name != given):
            raise InvalidRequest(f"the parameter '{given[:64]}' is not known", given[:64], "unknown_parameter")
        if name not in names:
            single[name] = value
            continue
        lists[name] += value.split(",") if name == "group_by" else [value]
        if len(lists[name]) > MAX_FILTER or len(value) > MAX_FILTER_CHARACTERS or "\0" in value:
            text = f"{name} may have {MAX_FILTER} values of {MAX_FILTER_CHARACTERS} characters without NUL"
            raise InvalidRequest(text, name, "invalid_value")
    return single, lists


def _time(single: Mapping[str, str], name: str) -> int:
    text = single[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 11 and int(text) <= MAX_TIME):
        raise InvalidRequest(f"{name} must be a time in whole Unix seconds", name, "invalid_value")
    return int(text)


def _cursor(page: str, first: int, end: int, width_s: int) -> tuple[int, tuple[str, ...]]:
    """The begin of the first bucket, and the group after which it begins."""
    whole = page.removeprefix("page_")
    text, has_group, group = whole.partition(".")
    is_number = text.isascii() and text.isdigit() and len(text) <= 11
    after = _group_in(group) if has_group else ()
    is_ours = page != whole and is_number and first <= int(text) < end and int(text) % width_s == 0
    if not is_ours or after is None:
        raise InvalidRequest("page must be the next_page of an answer to the same query", "page", "invalid_value")
    return int(text), after


def _cursor_of(query: UsageQuery) -> str:
    """The cursor of a page that begins with this query."""
    group = "." + urlsafe_b64encode(msgspec.json.encode(query.after)).decode() if query.after else ""
    return f"page_{query.start}{group}"


def _group_in(text: str) -> tuple[str, ...] | None:
    """None for what no cursor has."""
    try:
        group = msgspec.json.decode(urlsafe_b64decode(text), type=_Group)
    except ValueError:
        return None
    return None if any("\0" in name for name in group) else group


def _limit(single: Mapping[str, str], width: str, most: Mapping[str, int]) -> int:
    text = single.get("limit", str(DEFAULT_BUCKETS[width]))
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= most[width]):
        raise InvalidRequest(
            f"limit must be a number from 1 to {most[width]} for buckets of {width}", "limit", "invalid_value"
        )
    return int(text)


def split(query: UsageQuery, sums: Sequence[Sums]) -> tuple[Sequence[Sums], UsageQuery | None]:
    """The sums that a page has, and the query of the next page. None after the last page. `sums`: of
    `query.on_page()`.
    """
    if len(sums) <= query.max_rows:
        end = -(-query.on_page().end // query.width_s) * query.width_s
        return sums, query._replace(start=end, after=()) if end < query.end else None
    last = sums[-1].bucket
    if last > sums[0].bucket:  # it may lack results, so it begins the next page
        return [one for one in sums if one.bucket < last], query._replace(start=last, after=())
    shown = sums[: query.max_rows]
    return shown, query._replace(start=max(query.start, last), after=shown[-1].group)


def _page(query: UsageQuery, sums: Sequence[Sums], shown: Callable[[Sums], dict[str, Any] | None]) -> dict[str, Any]:
    on_page, rest = split(query, sums)
    by_bucket = {begin: list(group) for begin, group in groupby(on_page, lambda one: one.bucket)}
    end = query.on_page().end if rest is None else rest.start + bool(rest.after)
    data = [
        {
            "object": "bucket",
            "start_time": begin,
            "end_time": begin + query.width_s,
            "results": [
                {**result, "tenant_id": one.tenant_id} if query.of_all else result
                for one in by_bucket.get(begin, ())
                if (result := shown(one)) is not None
            ],
        }
        for begin in range(query.start, end, query.width_s)
    ]
    next_page = None if rest is None else _cursor_of(rest)
    return {"object": "page", "data": data, "has_more": rest is not None, "next_page": next_page}


def _usage(one: Sums) -> dict[str, Any] | None:
    """None for a group of requests that were refused or lost."""
    if not (one.requests or one.prompt_tokens or one.generated_tokens):
        return None
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": one.prompt_tokens,
        "input_cached_tokens": one.cached_tokens,
        "input_uncached_tokens": one.prompt_tokens - one.cached_tokens,
        "input_audio_tokens": 0,
        "output_tokens": one.generated_tokens,
        "output_audio_tokens": 0,
        "num_model_requests": one.requests,
        "project_id": one.project_id,
        "user_id": one.user_id,
        "api_key_id": one.api_key_id,
        "model": one.model,
        "batch": None,
        "service_tier": None,
    }


def _cost(one: Sums) -> dict[str, Any] | None:
    """None for what has no price."""
    if not one.currency:
        return None
    return {
        "object": "organization.costs.result",
        "amount": {"value": one.cost_micros / MICROS, "currency": one.currency.lower()},
        "line_item": None,
        "project_id": one.project_id,
        "api_key_id": one.api_key_id,
    }
