"""Pages of a list whose entries move neither repeat an entry nor leave one out."""

import httpx
import pytest

from api.state.lifecycle import ChatState


async def listed(http: httpx.AsyncClient, query: str) -> tuple[list[str], str, bool]:
    page = (await http.get(f"/v1/conversations?{query}")).json()
    return [entry["id"] for entry in page["data"]], page["last_id"], page["has_more"]


@pytest.fixture
async def made(http: httpx.AsyncClient, state: ChatState) -> list[str]:
    """The oldest first."""
    return [(await http.post("/v1/conversations", json={})).json()["id"] for _ in range(6)]


async def test_page_goes_on_where_the_last_one_ended_though_its_last_entry_has_moved(
    http: httpx.AsyncClient, made: list[str]
) -> None:
    first, cursor, has_more = await listed(http, "limit=3")
    assert first == made[:2:-1] and has_more
    await http.post(f"/v1/conversations/{first[-1]}", json={"metadata": {"touched": "yes"}})
    second, _, has_more = await listed(http, f"limit=3&after={cursor}")
    assert second == made[2::-1] and not has_more


async def test_nor_does_an_ascending_list_leave_out_what_is_behind_it(http: httpx.AsyncClient, made: list[str]) -> None:
    first, cursor, _ = await listed(http, "limit=3&order=asc")
    await http.post(f"/v1/conversations/{first[-1]}", json={"metadata": {"touched": "yes"}})
    second, _, _ = await listed(http, f"limit=10&order=asc&after={cursor}")
    assert second == [*made[3:], first[-1]]


async def test_id_of_a_conversation_is_a_cursor_too(http: httpx.AsyncClient, made: list[str]) -> None:
    assert (await listed(http, f"after={made[3]}"))[0] == made[2::-1]


@pytest.mark.parametrize("place", ["abc", "1e999", "9" * 40, "-", "nan", "inf"])
async def test_cursor_that_was_never_given_out_is_refused(http: httpx.AsyncClient, made: list[str], place: str) -> None:
    for query in ("", "query=dog&"):
        refused = await http.get(f"/v1/conversations?{query}after={made[0]}.{place}")
        assert refused.status_code in (400, 404), (query, place)
