"""What the documents name exists: files, links, and the constants of the table of timeouts."""

import re
from pathlib import Path

import pytest

from api.wire.response_headers import EXPOSED

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FOLDERS = "api|bench|cluster|conf|decode|docs|kvtransfer|prefill|router|tests"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./{{}},-]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
CONSTANT = re.compile(r"`(_?[A-Z][A-Z0-9]*_[A-Z0-9_]+|FENCE)`")
RESULTS = "bench/results/"
"""Benchmarks write their results there; they are not committed."""
LIBRARIES = frozenset({"TCP_USER_TIMEOUT", "UCX_KEEPALIVE_INTERVAL"})
"""Options of libraries, which the table names beside Baton's constants."""


def expanded(path: str) -> list[str]:
    """`a/{b,c}.py` names two files."""
    if (braces := re.search(r"\{([^}]*)\}", path)) is None:
        return [path]
    return [path.replace(braces[0], choice, 1) for choice in braces[1].split(",")]


def rows() -> list[tuple[str, str]]:
    """Names and files of each row of the table of timeouts."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("\n## Timeouts") :]
    cells = [line.split("|") for line in table.splitlines() if line.startswith("| ") and "set in |" not in line]
    return [(row[1], row[2]) for row in cells if CONSTANT.search(row[1])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = [path for match in PATH.finditer(page.read_text()) for path in expanded(match[1])]
    assert [path for path in named if not path.startswith(RESULTS) and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [match[1] for match in LINK.finditer(page.read_text())]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_headers_that_a_web_page_may_read_are_listed() -> None:
    listing = (ROOT / "docs/edge.md").read_text().partition("let them read the headers")[2].partition(". ")[0]
    assert set(re.findall(r"`([a-z-]+)`", listing)) == set(EXPOSED)


def test_table_of_timeouts_has_rows() -> None:
    assert len(rows()) > 100


@pytest.mark.parametrize(("names", "files"), rows())
def test_timeout_is_set_where_the_table_says(names: str, files: str) -> None:
    named = [path for path in re.findall(r"[\w/]+\.py", files) if (ROOT / path).exists()]
    sources = "\n".join((ROOT / path).read_text() for path in named)
    constants = set(CONSTANT.findall(names)) - LIBRARIES
    assert [name for name in sorted(constants) if not re.search(rf"^(\w+, )*{name}\b.*=", sources, re.MULTILINE)] == []
