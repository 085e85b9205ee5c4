"""Whom a request names as its end user, over HTTP."""

from typing import Any, cast

import httpx
import pytest

from api.charging.charging import Charging
from tests.component.app_with_fakes import FakeFrontend, an_app
from tests.unit.api.charging.test_charge import Books

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "baton-demo", "messages": [{"role": "user", "content": "Hello"}]},
    "/v1/completions": {"model": "baton-demo", "prompt": "Hello"},
}


class AskedCharging:
    """Keeps the end users that it was asked for."""

    def __init__(self) -> None:
        self.end_users: list[str] = []

    def charge(self, principal: object, end_user: str, tell: object, *, names_maximum: bool) -> object:
        self.end_users.append(end_user)
        return Books().charge(())


@pytest.mark.parametrize("path", BODIES)
async def test_safety_identifier_comes_before_user(path: str) -> None:
    charging = AskedCharging()
    app = an_app(FakeFrontend(), charging=cast(Charging, charging))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    named = [{"user": "u", "safety_identifier": "s"}, {"user": "u"}, {"safety_identifier": "s"}, {}]
    async with httpx.AsyncClient(transport=transport, base_url="http://baton") as http:
        for fields in named:
            (await http.post(path, json=BODIES[path] | fields)).raise_for_status()
    assert charging.end_users == ["s", "u", "s", ""]
