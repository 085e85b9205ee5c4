"""One Chromium for all tests, and for each test a page that must stay quiet: no errors, and no requests elsewhere."""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.browser.served_page import ServedPage, served_page
from tests.component.app_with_fakes import ADMIN_KEY

Open = Callable[..., Awaitable[Any]]
"""Opens the page in a context of its own, with these options of the context. Returns Playwright's page."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Any]:
    """Names other than localhost are this machine, as an attacker's name server would have it."""
    playwright = pytest.importorskip("playwright.async_api", reason="`make browser` installs it")
    command = shutil.which("chromium")
    assert command is not None, "`make browser` installs it"
    rules = "--host-resolver-rules=MAP * 127.0.0.1, EXCLUDE localhost"
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=command, args=[rules, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def served() -> AsyncIterator[ServedPage]:
    async with served_page() as page:
        yield page


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(chromium: Any, served: ServedPage) -> AsyncIterator[Open]:
    contexts, noise = list[Any](), list[str]()

    async def opened(*, signs_in: bool = True, expects: tuple[str, ...] = (), **options: Any) -> Any:
        """`expects`: parts of messages of the console that belong to the test."""
        options.setdefault("viewport", {"width": 1440, "height": 1000})
        context = await chromium.new_context(**options)
        contexts.append(context)
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("console", lambda message: note(message, expects))
        page.on("dialog", lambda dialog: noise.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: elsewhere(request.url))
        await page.goto(served.url)
        if signs_in:
            await sign_in(page)
        return page

    def note(message: Any, expects: tuple[str, ...]) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in expects):
            noise.append(f"console: {message.text}")

    def elsewhere(url: str) -> None:
        if not url.startswith(f"{served.url}/"):
            noise.append(f"asked {url}")

    yield opened
    for context in contexts:
        await context.close()
    assert noise == []


async def sign_in(page: Any) -> None:
    """By keyboard: the field has the focus."""
    await page.keyboard.type(ADMIN_KEY)
    await page.keyboard.press("Enter")
    await page.locator("#pools tbody tr").first.wait_for()
