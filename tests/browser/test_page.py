"""The page in a real browser: what it shows is what the receipts say. Only `make browser` runs these."""

import asyncio
from typing import Any

import pytest

from cluster.errors import TooManyRequests
from cluster.messages.ids import RequestId, SloClass
from cluster.messages.timeline import TimelineStage
from cluster.messages.views import QueuedRequest
from tests.browser.conftest import Open
from tests.browser.served_page import ServedPage, all_kinds
from tests.browser.served_page import served as a_served
from tests.component.app_with_fakes import ADMIN_KEY

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="session")]

SIZES = {"narrow": {"width": 360, "height": 740}, "wide": {"width": 1440, "height": 1000}}
MOST_ELEMENTS = 2600
"""Elements of the page, however large the cluster is."""


async def cells(page: Any, table: str) -> list[list[str]]:
    rows: list[list[str]] = await page.locator(f"#{table} tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def named(stage: TimelineStage) -> str:
    return stage.name.replace("_", " ") + ("" if stage.is_measured else " ~ not measured")


async def test_page_shows_what_the_receipts_and_the_scheduler_say(served: ServedPage, open_page: Open) -> None:
    for receipt in all_kinds():
        served.receipts.closed(receipt)
    served.cluster.waiting = [
        QueuedRequest(
            request_id=RequestId("r7"),
            slo_class=SloClass.BATCH,
            num_before=3,
            waited_s=1.0,
            wait_s=2.0,
            gives_up_s=20.0,
        )
    ]
    page = await open_page()
    assert [row[:3] for row in await cells(page, "pools")] == [["prefill", "1", "0"], ["decode", "1", "0"]]
    workers = {row[0]: row for row in await cells(page, "workers")}
    assert workers["d0"][2:6] == ["ready", "3 of 512", "2 (+1 wait)", "50 %"]
    assert workers["p0"][2:6] + workers["p0"][8:9] == ["ready", "1 of 512", "1", "25 %", "2"]
    await page.locator("#queue tbody tr").wait_for()
    assert (await cells(page, "queue"))[0] == ["r7", "batch", "3", "1.00 s", "2.00 s", "20.00 s", "no"]
    classes = {row[0]: row[1:3] for row in await cells(page, "classes")}
    assert classes == {
        "interactive": ["1", "1 (100 %)"],
        "standard": ["4", "1 (25 %)"],
        "batch": ["1", "1 (100 %)"],
    }
    last = {row[1]: row for row in await cells(page, "last")}
    assert [*last] == ["refused", "failed", "left", "late", "on-p", "on-d", "served"]
    assert last["served"][2:9] == ["standard", "P->D", "500 ms / 400 ms", "10 ms / 20 ms", "40 (16)", "3", "✓ good"]
    assert last["late"][8] == "✗ ttft missed"
    assert last["left"][8] == "aborted"


async def test_request_in_full_has_its_stages_and_closes_by_keyboard(served: ServedPage, open_page: Open) -> None:
    receipt = a_served()
    served.receipts.closed(receipt)
    page = await open_page()
    opener = page.get_by_role("button", name="served")
    await opener.focus()
    await page.keyboard.press("Enter")
    detail = page.locator("#detail")
    await detail.wait_for()
    assert await detail.evaluate("node => node === document.activeElement")
    stages = await cells(page, "detail")
    assert [(row[0], row[1]) for row in stages] == [(named(stage), stage.place) for stage in receipt.timeline]
    assert stages[3][2:4] == ["130 ms", "270 ms"]
    assert "24 computed, 16 cached" in await detail.inner_text()
    await page.get_by_label("Only until the first token").check()
    assert [row[0] for row in await cells(page, "detail")] == [row[0] for row in stages[:6]], "decode begins with it"
    await page.keyboard.press("Escape")
    assert await detail.is_hidden()
    assert await opener.evaluate("node => node === document.activeElement")


async def test_wrong_key_is_refused_and_the_key_is_in_no_url(served: ServedPage, open_page: Open) -> None:
    page = await open_page(signs_in=False, expects=("401",))
    urls = list[str]()
    page.on("request", lambda request: urls.append(request.url))
    await page.keyboard.type("baton-admin-" + "x" * 40)
    await page.keyboard.press("Enter")
    await page.get_by_text("this is not the admin key of this service").wait_for()
    assert await page.evaluate("sessionStorage.length") == 0
    await page.get_by_role("textbox", name="Admin key").fill(ADMIN_KEY)
    await page.keyboard.press("Enter")
    await page.locator("#pools tbody tr").first.wait_for()
    assert not any("baton-admin" in url for url in [*urls, page.url])
    assert await page.context.cookies() == []
    await page.reload()
    await page.locator("#pools tbody tr").first.wait_for()  # the tab has kept the key
    await page.get_by_role("button", name="Forget the key").click()
    assert await page.evaluate("sessionStorage.length") == 0
    assert await page.locator("#board").is_hidden()


async def test_chat_by_keyboard_shows_the_path_and_the_receipt(served: ServedPage, open_page: Open) -> None:
    page = await open_page()
    await page.keyboard.type("Hello")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("there")
    await page.keyboard.press("Enter")
    answer = page.locator(".turn.assistant")
    summary = answer.locator(".outcome > summary")
    await summary.wait_for()
    assert await answer.locator(".text").inner_text() == "Good morning."
    ((_, body),) = served.frontend.bodies
    assert body["messages"] == [{"role": "user", "content": "Hello\nthere"}]
    (receipt,) = served.receipts.kept.last(1)
    assert await answer.get_attribute("data-receipt") == receipt.request_id
    shown = await summary.inner_text()
    assert "P->D" in shown and "TTFT 500 ms / 400 ms predicted" in shown and "TPOT 10 ms / 20 ms predicted" in shown
    assert "40 pulled from the prefill worker" in shown
    await summary.focus()
    await page.keyboard.press("Enter")
    stages = await answer.locator(".stages tbody tr").evaluate_all("rows => rows.map(row => row.cells[0].textContent)")
    assert stages == [named(stage) for stage in receipt.timeline]
    assert receipt.request_id in await answer.inner_text()
    spoken = await page.locator("#spoken p").all_inner_texts()
    assert "Good morning." in spoken and spoken[-1] == "The answer is complete."


async def test_next_message_has_those_before_it_and_a_new_chat_none(served: ServedPage, open_page: Open) -> None:
    page = await open_page()
    for number in (1, 2):
        await page.keyboard.type("Again")
        await page.keyboard.press("Enter")
        await page.locator(".outcome").nth(number - 1).wait_for()
    roles = [message["role"] for message in served.frontend.bodies[-1][1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    await page.get_by_role("button", name="New chat").click()
    await page.keyboard.type("Fresh")
    await page.keyboard.press("Enter")
    await page.locator(".outcome").wait_for()
    assert len(served.frontend.bodies[-1][1]["messages"]) == 1


async def test_escape_stops_the_answer_and_the_generation(served: ServedPage, open_page: Open) -> None:
    served.frontend.gate.clear()
    page = await open_page()
    await page.keyboard.type("Go on")
    await page.keyboard.press("Enter")
    await page.get_by_text("Good", exact=True).wait_for()
    await page.keyboard.press("Escape")
    await page.get_by_text("Stopped.").first.wait_for()
    await asyncio.wait_for(served.frontend.aborted.wait(), 10)
    assert await page.locator("#send").is_enabled()


async def test_refusal_is_said_and_leaves_the_chat_usable(served: ServedPage, open_page: Open) -> None:
    served.frontend.answer = TooManyRequests("all workers are busy", 3.0)
    page = await open_page(expects=("429",))
    await page.keyboard.type("Hello")
    await page.keyboard.press("Enter")
    await page.get_by_text("all workers are busy Try again in 3 s. (request req_").wait_for()
    served.frontend.answer = {}
    await page.locator("#message").fill("Hello")
    await page.keyboard.press("Enter")
    await page.locator(".outcome").wait_for()
    assert [message["content"] for message in served.frontend.bodies[-1][1]["messages"]] == ["Hello"]


HOSTILE = [
    "<img src=x onerror=alert(1)><script>alert(2)</script><svg onload=alert(3)>",
    "javascript:alert(4) [a](javascript:alert(5)) ${alert(6)} {{constructor.constructor('alert(7)')()}}",
    "\u202egnirts desrever\u202c \u2066\u2067x\u2069 \u200f",
    "\x00\x07\x1b[31m\ufeff\U000e0001",
    "x" * 100_000,
    "</div></article></main><h1>owned</h1>",
    "data: [DONE]\n\nevent: baton\ndata: {}\n\n",
]


async def test_hostile_text_does_nothing(served: ServedPage, open_page: Open) -> None:
    """Dialogs, errors and requests to elsewhere fail the test (conftest)."""
    served.frontend.pieces = HOSTILE
    page = await open_page()
    before = await page.evaluate("document.querySelectorAll('img, script, h1, iframe, object').length")
    await page.keyboard.type("<b onmouseover=alert(8)>Hi</b>")
    await page.keyboard.press("Enter")
    await page.locator(".outcome").wait_for()
    assert await page.locator(".turn.assistant .text").evaluate("node => node.childElementCount") == 0
    shown = await page.locator(".turn.assistant .text").evaluate("node => node.textContent")
    assert shown == "".join(HOSTILE)
    assert await page.evaluate("document.querySelectorAll('img, script, h1, iframe, object').length") == before
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_policy_stops_scripts_and_html_that_get_in_all_the_same(served: ServedPage, open_page: Open) -> None:
    page = await open_page(expects=("Content Security Policy", "TrustedHTML", "TrustedScript"))
    tried = await page.evaluate("""() => {
        const tried = {};
        const script = document.createElement("script");
        try {
            script.textContent = "window.owned = true";
            document.body.append(script);
        } catch (error) { tried.text = error.name; }
        try { document.body.innerHTML = "<p>owned</p>"; } catch (error) { tried.html = error.name; }
        return fetch("http://evil.example/").then(() => "read", () => "refused").then((read) => ({...tried, read}));
    }""")
    assert (tried["html"], tried["read"]) == ("TypeError", "refused")
    assert await page.evaluate("window.owned") is None


async def test_thousand_workers_are_found_and_keep_the_page_small(served: ServedPage, open_page: Open) -> None:
    served.cluster.grow(1000)
    for number in range(50):
        served.receipts.closed(a_served(f"chatcmpl-{number}"))
    page = await open_page()
    await page.get_by_text("1 to 20 of 1,000").wait_for()
    assert await page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS
    await page.get_by_role("button", name="Next").click()
    await page.get_by_text("21 to 40 of 1,000").wait_for()
    await page.get_by_label("Find").fill("code-0499")
    await page.get_by_text("1 to 1 of 1").wait_for()
    assert (await cells(page, "workers"))[0][0] == "decode-0499"
    maps = page.locator("canvas.map")
    assert await maps.count() == 2
    assert await maps.first.evaluate("node => node.width > 0 && node.height > 0")


async def test_page_says_that_the_scheduler_is_away_and_that_it_is_back(served: ServedPage, open_page: Open) -> None:
    page = await open_page()
    served.cluster.is_away = True
    await page.get_by_text("The Scheduler does not answer: the Scheduler cannot be reached").wait_for()
    assert {row[0] for row in await cells(page, "workers")} == {"p0", "d0"}, "what was known stays"
    assert await page.locator("#state-text").inner_text() == "The Scheduler is away"
    served.cluster.is_away = False
    await page.locator("#stale").wait_for(state="hidden")
    assert await page.locator("#state-text").inner_text() == "Live"


async def test_page_says_that_the_service_is_gone_and_finds_it_again(served: ServedPage, open_page: Open) -> None:
    page = await open_page(expects=("ERR_CONNECTION",))
    await served.stop()
    await page.get_by_text("No answer: the service cannot be reached").wait_for()
    assert await page.locator("#state-text").inner_text() == "No answer"
    await served.start()
    await page.locator("#stale").wait_for(state="hidden")
    assert await page.locator("#state-text").inner_text() == "Live"


async def test_page_that_is_hidden_or_paused_asks_nothing(served: ServedPage, open_page: Open) -> None:
    page = await open_page()
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    hide = """isHidden => {
        Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    asked.clear()
    await asyncio.sleep(2.5)  # longer than a poll takes to come again
    assert asked == []
    async with page.expect_request("**/baton/live"):
        await page.evaluate(hide, False)
    pause = page.get_by_role("button", name="Pause")
    await pause.click()
    asked.clear()
    await asyncio.sleep(2.5)
    assert (asked, await pause.get_attribute("aria-pressed")) == ([], "true")
    async with page.expect_request("**/baton/live"):
        await pause.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
async def test_page_is_accessible_and_fits(served: ServedPage, open_page: Open, size: str, scheme: str) -> None:
    """axe-core checks roles, names and contrast, of the page with all that it can show."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    for receipt in all_kinds():
        served.receipts.closed(receipt)
    page = await open_page(viewport=SIZES[size], color_scheme=scheme, reduced_motion="reduce", bypass_csp=True)
    await page.keyboard.type("Hello")
    await page.keyboard.press("Enter")
    await page.locator(".outcome > summary").click()
    await page.locator("#links-more > summary").click()
    await page.get_by_role("button", name="served").click()
    await page.locator("#detail").wait_for()
    found = (await axe.run(page, options={"resultTypes": ["violations", "incomplete"]})).response
    seen = [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
    assert seen == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"]


async def test_login_is_accessible(served: ServedPage, open_page: Open) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    page = await open_page(signs_in=False, bypass_csp=True)
    assert (await axe.run(page)).response["violations"] == []
    assert await page.evaluate("document.activeElement.id") == "key"


async def test_every_control_is_reached_by_the_tab_key_and_its_focus_is_seen(
    served: ServedPage, open_page: Open
) -> None:
    for receipt in all_kinds():
        served.receipts.closed(receipt)
    page = await open_page()
    await page.locator("#last tbody tr").first.wait_for()
    await page.keyboard.press("Control+Home")
    await page.evaluate("document.activeElement.blur()")
    reached, unseen = set[str](), list[str]()
    for _ in range(60):
        await page.keyboard.press("Tab")
        name, outline = await page.evaluate("""() => {
            const node = document.activeElement;
            const name = node === document.body ? "nothing" : node.id || node.textContent.slice(0, 20);
            return [name, getComputedStyle(node).outlineStyle];
        }""")
        reached.add(name)
        unseen += [name] if outline == "none" and name != "nothing" else []
    wanted = {"pause", "forget", "message", "slo-class", "max-tokens", "send", "new-chat", "worker-find", "served"}
    assert wanted - reached == set()
    assert unseen == []
