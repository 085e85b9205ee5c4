"""The safety events of a tenant, as it reads them itself."""

from typing import Any

import openai

from tests.real_cluster.service import wait_for

RECORDED_WITHIN_S = 60.0
"""Events are written in the background, and PostgreSQL may have to come back first."""

Event = dict[str, Any]


def event_of(client: openai.OpenAI, answer: str, direction: str) -> Event:
    """The event of one text of an exchange. `answer`: the id of the completion."""
    query = {"request_id": answer.partition("-")[2], "direction": direction}
    found: list[Event] = []

    def is_recorded() -> bool:
        page = client.get("/safety/events", cast_to=dict[str, Any], options={"params": query})
        found.extend(page["data"])
        return bool(found)

    wait_for(is_recorded, RECORDED_WITHIN_S)
    (event,) = found
    return event


def event_of_refusal(client: openai.OpenAI, refused: openai.APIStatusError) -> Event:
    """The event of an input that was not let in."""
    name = refused.response.headers["x-safety-event-id"]
    found: list[Event] = []

    def is_recorded() -> bool:
        try:
            found.append(client.get(f"/safety/events/{name}", cast_to=dict[str, Any]))
        except openai.NotFoundError:
            return False
        return True

    wait_for(is_recorded, RECORDED_WITHIN_S)
    return found[0]


def guard_in(event: Event) -> dict[str, Any]:
    """What the guard has said."""
    (verdict,) = [verdict for verdict in event["verdicts"] if verdict["stage"] == "guard"]
    return dict(verdict)
