"""What the documents name exists: files, pages and their headings. tests/test_timeouts.py has the table of timeouts."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from api.wire.response_headers import EXPOSED
from cluster.config.application import AppConfig
from cluster.config.engine_arguments import BATON_SETS, HASHED_ALIKE, LIKE_THE_OTHER_POOL, RULED
from cluster.messages.views import QueuedRequest
from cluster.metrics.page import scrape

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FOLDERS = "api|bench|cluster|conf|decode|docs|kvtransfer|prefill|router|tests"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./{{}},-]+)`")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RESULTS = "bench/results/"
"""Benchmarks write their results there; they are not committed."""


def expanded(path: str) -> list[str]:
    """`a/{b,c}.py` names two files."""
    if (braces := re.search(r"\{([^}]*)\}", path)) is None:
        return [path]
    return [path.replace(braces[0], choice, 1) for choice in braces[1].split(",")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [path for match in PATH.finditer(page.read_text()) for path in expanded(match[1])]
    assert [path for path in named if not path.startswith(RESULTS) and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [(page.parent / match[1] if match[1] else page, match[2]) for match in LINK.finditer(page.read_text())]
    assert [str(target) for target, _ in links if not target.exists()] == []
    assert [f"{target.name}#{anchor}" for target, anchor in links if anchor and anchor not in anchors(target)] == []


def test_headers_that_a_web_page_may_read_are_listed() -> None:
    listing = (ROOT / "docs/edge.md").read_text().partition("let them read the headers")[2].partition(". ")[0]
    assert set(re.findall(r"`([a-z-]+)`", listing)) == set(EXPOSED)


def test_table_of_the_queue_has_each_field() -> None:
    table = (ROOT / "docs/slo.md").read_text().partition("`GET /baton/queue` lists")[2].partition("\n## ")[0]
    assert set(QueuedRequest.__struct_fields__) <= set(re.findall(r"`(\w+)`", table))


def told_defaults() -> list[tuple[str, str, Any]]:
    """Page, section and settings of each section of the config that a page gives with the remark that it has the
    defaults.
    """
    blocks = [
        (page.name, block)
        for page in PAGES
        for block in re.findall(r"(?s)```yaml\n(.*?)```", page.read_text())
        if "# these are the defaults" in block
    ]
    told = [(page, yaml.safe_load(block)) for page, block in blocks]
    return [(page, key, value) for page, config in told for key, value in config.get("args", config).items()]


@pytest.mark.parametrize(("page", "section", "settings"), told_defaults(), ids=lambda value: str(value)[:20])
def test_defaults_of_a_page_are_those_of_the_config(page: str, section: str, settings: Any) -> None:
    config = getattr(AppConfig(model="m"), section)
    told = msgspec.convert(settings, type(config))
    assert told == msgspec.convert(msgspec.to_builtins(config), type(config)), (
        f"docs/{page} has other defaults of {section} than the config: correct its block, and look for the old value "
        "in the other pages"
    )


def test_pages_of_the_probe_and_of_objectives_give_their_defaults() -> None:
    assert {section for _, section, _ in told_defaults()} >= {"quality_probe", "slo"}


def test_page_of_models_names_each_engine_argument_that_is_refused() -> None:
    listing = (ROOT / "docs/models.md").read_text().partition("## Engine arguments that are refused")[2]
    named = set(re.findall(r"`(\w+)`", listing.partition("\n## ")[0]))
    assert {*BATON_SETS, *HASHED_ALIKE, *RULED, *LIKE_THE_OTHER_POOL} - named == set()


@pytest.mark.parametrize(
    "name", sorted(family.name for family in scrape("", "").families if family.name.startswith("baton_"))
)
def test_each_metric_is_in_a_page(name: str) -> None:
    """As Prometheus shows it: a counter with its suffix."""
    shown = re.compile(rf"`{name}(_total)?[`{{]")
    assert [page.name for page in PAGES if shown.search(page.read_text())] != []


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives the headings of a page."""
    headings = [match[1].strip().lower() for match in HEADING.finditer(page.read_text())]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}
