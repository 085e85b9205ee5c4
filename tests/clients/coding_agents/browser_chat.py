"""One turn of a chat on the page of Open WebUI, in Chromium. It runs in the environment of Open WebUI, which has
Playwright: `python browser_chat.py <url> <prompt> <the answer> <path of chromium>`.
"""

import importlib
import os
import sys

PATIENCE_MS = 120_000
"""Longest time for each step of the page, in milliseconds."""


def main(url: str, prompt: str, answer: str, chromium: str) -> None:
    playwright = importlib.import_module("playwright.sync_api")
    options = ["--disable-gpu", "--disable-background-networking", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        # It covers the page at the first visit, and tells what is new
        page.add_locator_handler(page.get_by_role("dialog"), lambda: page.keyboard.press("Escape"))
        page.goto(url)
        page.locator("#chat-input").click()
        page.keyboard.insert_text(prompt)
        page.keyboard.press("Enter")
        page.locator(".chat-assistant", has_text=answer).first.wait_for()
        print(page.locator(".chat-assistant").first.inner_text())
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
