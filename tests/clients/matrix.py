"""Writes the lists of docs/clients.md from the catalogue, the pins and the drivers:
`python -m tests.clients.matrix`.
"""

from collections.abc import Iterator

from cluster.repository import REPO_ROOT
from tests.clients.catalogue import CLIENTS, Client

PAGE = REPO_ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- begin of what `python -m tests.clients.matrix` writes -->", "<!-- end -->"


def main() -> None:
    PAGE.write_text(page_with(written(), PAGE.read_text()))


def page_with(part: str, page: str) -> str:
    """The page with another part between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{part}{END}{after}"


def written() -> str:
    lines = ["| client | version | how it is pointed at Baton |", "|---|---|---|", *map(_row, CLIENTS), ""]
    for client in CLIENTS:
        lines += _section(client)
    return "\n".join(lines) + "\n"


def _row(client: Client) -> str:
    versions = ", ".join(f"`{package}` {version}" for package, version in client.versions.items())
    return f"| {client.title} | {versions} | {client.setting} |"


def _section(client: Client) -> Iterator[str]:
    yield f"### {client.title}"
    yield ""
    for surface, flows in by_surface(client).items():
        yield f"- **{surface}**: {'; '.join(flows)}"
    if client.left_out:
        yield f"- **not possible, so not tried**: {' '.join(client.left_out)}"
    yield ""


def by_surface(client: Client) -> dict[str, list[str]]:
    """What its flows do, by the part of the API that they use."""
    found: dict[str, list[str]] = {}
    for flow in client.flows:
        surface, _, does = flow.partition(": ")
        found.setdefault(surface, []).append(does)
    return found


if __name__ == "__main__":
    main()
