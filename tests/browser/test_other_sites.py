"""What a page of another site can do to the page in the same browser, with the admin key in the next tab: nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.browser.conftest import sign_in
from tests.browser.served_page import ServedPage, free_port

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="session")]

ATTACK = """async (baton) => {
  const told = {};
  const body = JSON.stringify({messages: [{role: "user", content: "Hello"}]});
  async function tried(name, path, options) {
    try {
      const answer = await fetch(baton + path, options);
      told[name] = [answer.type, answer.status, answer.type === "opaque" ? "" : await answer.text()];
    } catch (error) { told[name] = ["failed"]; }
  }
  await tried("reads", "/baton/live");
  await tried("reads with cookies", "/baton/live", {credentials: "include"});
  await tried("reads without cors", "/baton/live", {mode: "no-cors"});
  await tried("asks", "/baton/chat", {method: "POST", headers: {"content-type": "application/json"}, body});
  await tried("asks as a form", "/baton/chat", {method: "POST", mode: "no-cors", body});
  told.beacon = navigator.sendBeacon(baton + "/baton/chat", new Blob([body], {type: "text/plain"}));
  const frame = document.createElement("iframe");
  frame.src = baton + "/";
  const loaded = new Promise((resolve) => { frame.onload = resolve; setTimeout(resolve, 3000); });
  document.body.append(frame);
  await loaded;
  try { told.frame = frame.contentDocument ? "readable" : "closed"; } catch { told.frame = "closed"; }
  const script = document.createElement("script");
  script.src = baton + "/page/main.js";
  told.script = await new Promise((resolve) => {
    script.onload = () => resolve("ran"); script.onerror = () => resolve("refused"); document.head.append(script);
  });
  const opened = window.open(baton + "/");
  await new Promise((resolve) => setTimeout(resolve, 1500));
  try { told.opened = opened.sessionStorage.length; } catch { told.opened = "closed"; }
  return told;
}"""


@asynccontextmanager
async def a_site(port: int) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = b"<!doctype html><title>evil</title><body>"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(page) + page)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port):
        yield


async def test_page_of_another_site_reads_and_starts_nothing(chromium: Any, served: ServedPage) -> None:
    port = free_port()
    context = await chromium.new_context()
    try:
        own = await context.new_page()
        await own.goto(served.url)
        await sign_in(own)
        async with a_site(port):
            evil = await context.new_page()
            await evil.goto(f"http://evil.example:{port}/")
            told = await evil.evaluate(ATTACK, served.url)
    finally:
        await context.close()
    for way in ("reads", "reads with cookies", "asks"):
        assert told[way] == ["failed"], way
    for way in ("reads without cors", "asks as a form"):
        assert told[way] in (["failed"], ["opaque", 0, ""]), way
    assert (told["frame"], told["opened"]) == ("closed", "closed")
    assert told["script"] == "refused"
    assert served.frontend.bodies == []
    assert "baton-admin" not in json.dumps(told)


async def test_name_that_is_rebound_to_this_machine_gets_no_page(chromium: Any, served: ServedPage) -> None:
    context = await chromium.new_context()
    try:
        page = await context.new_page()
        answer = await page.goto(f"http://rebound.example:{served.port}/")
        assert answer.status == 421
        assert "host_not_allowed" in await page.content()
    finally:
        await context.close()
