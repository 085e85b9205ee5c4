"""One HTML file of charts and text. It loads nothing, runs no script, and is dark where the browser is. Pure."""

from collections.abc import Iterable
from html import escape

from cluster.charts.chart import STYLE

_STYLE = (
    "body{font:14px sans-serif;margin:24px auto;padding:0 16px;max-width:1680px;color:#1f2937;background:#fff}"
    "pre{background:#f3f4f6;padding:12px;overflow:auto}svg{max-width:100%;height:auto}"
    ".charts{display:flex;flex-wrap:wrap;gap:12px}"
)
_DARK = (
    "@media (prefers-color-scheme:dark){body{color:#e5e7eb;background:#111827}pre{background:#1f2937}"
    "svg text{fill:#e5e7eb}svg .paper{fill:#111827}svg .grid{stroke:#374151}svg .guide{stroke:#6b7280}"
    "svg .limit{stroke:#f87171}}"
)
"""Stronger than the style that a chart which stands alone brings along."""


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """The file. `parts`: HTML, in which texts of others are escaped. `style`: CSS of this page alone."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title><style>{STYLE}{_STYLE}{style}{_DARK}</style></head><body>",
            *parts,
            "</body></html>\n",
        ]
    )
