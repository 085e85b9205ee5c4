"""The pages of usage, against a model that counts row by row."""

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.wire.organization.usage import (
    GROUPS,
    WIDTHS,
    Sums,
    UsageQuery,
    costs_page,
    costs_query,
    usage_page,
    usage_query,
)
from cluster.errors import InvalidRequest

NOW = 1_780_300_000.5

Used = tuple[int, str, str, str, str, int]
"""A time, a project, an end user, a key, a model, and tokens."""


def query_of(**parameters: Any) -> UsageQuery:
    pairs = [
        (name, str(value))
        for name, values in parameters.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return usage_query(pairs, NOW)


def sums_of(rows: list[Used], query: UsageQuery) -> list[Sums]:
    """What the database answers: each row is a request with a prompt of so many tokens."""
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for at, *columns, tokens in rows:
        if query.start <= at < query.end:
            groups = [value if name in query.group_by else None for name, value in zip(GROUPS, columns, strict=True)]
            found[(at - at % query.width_s, *groups)].append(tokens)
    sums = [
        Sums(key[0], None, key[1], key[2], key[3], key[4], "usd", sum(all_of), 0, 1, 0, 2_500_000, len(all_of), 0)
        for key, all_of in found.items()
    ]
    ordered = sorted(sums, key=lambda one: (one.bucket, one.group))
    left = [one for one in ordered if (one.bucket, one.group) > (query.start, query.after)]
    return left[: query.max_rows + 1]


times = st.integers(1_700_000_000, 1_700_300_000)
names = st.sampled_from(["a", "b"])
rows = st.lists(st.tuples(times, names, names, names, names, st.integers(1, 9)), max_size=30)


@given(
    rows,
    times,
    st.integers(1, 300_000),
    st.sampled_from(["1h", "1d"]),
    st.sets(st.sampled_from(GROUPS)),
    st.integers(1, 31),
    st.integers(1, 40),
)
def test_pages_together_have_every_row_once(
    used: list[Used], start: int, length_s: int, width: str, by: set[str], limit: int, max_rows: int
) -> None:
    asked: dict[str, Any] = {
        "start_time": start,
        "end_time": start + length_s,
        "bucket_width": width,
        "limit": limit,
        "group_by": sorted(by),
    }
    buckets: list[dict[str, Any]] = []
    while True:
        query = query_of(**asked)._replace(max_rows=max_rows)
        page = usage_page(query, sums_of(used, query.on_page()))
        assert 0 < len(page["data"]) <= limit
        assert sum(len(bucket["results"]) for bucket in page["data"]) <= max_rows
        if buckets and buckets[-1]["start_time"] == page["data"][0]["start_time"]:  # more than a page of results
            buckets[-1]["results"] += page["data"].pop(0)["results"]
        buckets += page["data"]
        if not page["has_more"]:
            break
        asked["page"] = page["next_page"]
    first = start - start % WIDTHS[width]
    begins = [bucket["start_time"] for bucket in buckets]
    assert begins == list(range(first, start + length_s, WIDTHS[width]))
    assert all(bucket["end_time"] - bucket["start_time"] == WIDTHS[width] for bucket in buckets)
    results = [result for bucket in buckets for result in bucket["results"]]
    inside = [row for row in used if first <= row[0] < start + length_s]
    assert sum(result["input_tokens"] for result in results) == sum(row[5] for row in inside)
    assert sum(result["num_model_requests"] for result in results) == len(inside)
    for bucket in buckets:
        for result in bucket["results"]:
            assert all((result[group] is None) == (group not in by) for group in GROUPS)


@pytest.mark.parametrize(
    ("parameters", "wrong"),
    [
        ({}, "start_time"),
        ({"start_time": "yesterday"}, "start_time"),
        ({"start_time": "-1"}, "start_time"),
        ({"start_time": "99999999999999"}, "start_time"),
        ({"start_time": "\u0663"}, "start_time"),
        ({"start_time": 5, "end_time": 5}, "end_time"),
        ({"start_time": 5, "bucket_width": "1w"}, "bucket_width"),
        ({"start_time": 5, "limit": 0}, "limit"),
        ({"start_time": 5, "limit": 32}, "limit"),
        ({"start_time": 5, "bucket_width": "1m", "limit": 1441}, "limit"),
        ({"start_time": 5, "group_by": "colour"}, "group_by"),
        ({"start_time": 5, "page": "5"}, "page"),
        ({"start_time": 5, "page": "page_7"}, "page"),
        ({"start_time": 864000, "page": "page_0"}, "page"),
        ({"start_time": 0, "page": "page_0."}, "page"),
        ({"start_time": 0, "page": "page_0.W10="}, "page"),
        ({"start_time": 0, "page": "page_0.é"}, "page"),
        ({"start_time": 0, "page": "page_0.WyIiLCIiLCIiLCIiLCIiLCJcdTAwMDAiXQ=="}, "page"),
        ({"start_time": 0, "page": "page_0.WyIiLCIiLCIiLCIiLCIiLCJcdWQ4MDAiXQ=="}, "page"),
        ({"start_time": 5, "models": ["m"] * 101}, "models"),
        ({"start_time": 5, "user_ids": "x\0"}, "user_ids"),
        ({"start_time": 5, "user_ids": "x" * 513}, "user_ids"),
        ({"start_time": 5, "colour": "red"}, "colour"),
        ({"start_time[]": 5}, "start_time[]"),
    ],
)
def test_parameter_that_is_wrong_is_named(parameters: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        query_of(**parameters)
    assert refused.value.param == wrong


def test_lists_may_be_written_as_clients_write_them() -> None:
    pairs = [("start_time", "0"), ("group_by[]", "model"), ("group_by", "user_id,project_id"), ("models[]", "a,b")]
    query = usage_query(pairs, NOW)
    assert (query.group_by, query.models, query.user_ids) == (("project_id", "user_id", "model"), ["a,b"], None)


def test_query_without_an_end_ends_now() -> None:
    query = query_of(start_time=0)
    assert (query.end, query.width_s, query.num_buckets) == (1_780_300_001, 86_400, 7)
    assert query_of(start_time=0, end_time=1 << 36).end == query.end


def test_costs_have_an_amount_in_a_currency() -> None:
    query = costs_query([("start_time", "0"), ("end_time", "1"), ("limit", "180")], NOW)
    assert query.group_by == ("currency",)
    page = costs_page(query, sums_of([(0, "p", "u", "k", "m", 3)], query))
    (result,) = page["data"][0]["results"]
    assert result["object"] == "organization.costs.result"
    assert (result["amount"], result["line_item"]) == ({"value": 2.5, "currency": "usd"}, None)


def test_refused_and_lost_requests_are_no_results() -> None:
    query = query_of(start_time=0, end_time=1)
    nothing = Sums(0, None, None, None, None, None, "", 0, 0, 0, 0, 0, 0, 3)
    assert usage_page(query, [nothing])["data"][0]["results"] == []
    assert costs_page(query, [nothing])["data"][0]["results"] == []


def test_operators_alone_tell_tenants_apart() -> None:
    pairs = [("start_time", "1780200000"), ("group_by", "tenant_id"), ("tenant_ids", "a"), ("tenant_ids", "b")]
    query = usage_query(pairs, NOW, of_all=True)
    assert (query.group_by, query.tenant_ids, query.of_all) == (("tenant_id",), ["a", "b"], True)
    for wrong in (pairs[:2], [pairs[0], pairs[2]]):
        with pytest.raises(InvalidRequest, match="tenant_id"):
            usage_query(wrong, NOW)
    one = Sums(query.start, "a", None, None, None, None, "usd", 9, 0, 1, 0, 2_500_000, 1, 0)
    results = [result for bucket in usage_page(query, [one])["data"] for result in bucket["results"]]
    assert [result["tenant_id"] for result in results] == ["a"]
    of_one = usage_page(query._replace(of_all=False), [one])
    assert not any("tenant_id" in result for bucket in of_one["data"] for result in bucket["results"])
    assert costs_query(pairs, NOW, of_all=True).group_by == ("tenant_id", "currency")
