"""Writes the panels as one HTML file, with the figures that a Prometheus has: the dashboard without Grafana.

python -m cluster.observability.render --out FILE.html
"""

import argparse
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from cluster.observability.panels.panel import FIRING, Panel, plain
from cluster.observability.panels.table import SUBJECTS
from cluster.observability.render.page import Drawn, dashboard_page, lines_of
from cluster.observability.render.prometheus import Prometheus, PrometheusFailed
from cluster.observability.render.window import Window, window

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cluster.observability.render",
        description="Write the panels as one HTML file, with the figures that a Prometheus has.",
    )
    add = parser.add_argument
    add("--prometheus", type=_address, default="http://127.0.0.1:9090", metavar="URL", help="(default: %(default)s)")
    add(
        "--last",
        type=_duration,
        default="30m",
        metavar="TIME",
        help="how far back, as 90s or 6h (default: %(default)s)",
    )
    add("--until", type=_moment, metavar="TIME", help="the end, as 2026-11-28T08:00Z (default: now)")
    add(
        "--scrape",
        type=_duration,
        default="15s",
        metavar="TIME",
        help="time between two scrapes, as in the settings of Prometheus (default: %(default)s)",
    )
    add("--out", type=Path, required=True, metavar="FILE.html", help="the file that is written")
    asked = parser.parse_args()
    until = time.time() if asked.until is None else asked.until
    try:
        asked.out.write_text(rendered(asked.prometheus, window(until, asked.last, asked.scrape)), encoding="utf-8")
    except (PrometheusFailed, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def rendered(prometheus: Prometheus, when: Window) -> str:
    """The page. Each panel is drawn before the figures of the next one are asked for."""
    rates = f"{when.rate_interval}s"

    def lines(panel: Panel) -> list[Drawn]:
        return lines_of(panel, [prometheus.series(plain(curve.query, window=rates), when) for curve in panel.curves])

    rows = ((subject, map(lines, subject.panels)) for subject in SUBJECTS)
    return dashboard_page(prometheus.url, when, rows, prometheus.series(FIRING, when))


def _address(text: str) -> Prometheus:
    try:
        return Prometheus(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _duration(text: str) -> int:
    found = re.fullmatch(r"([1-9]\d{0,5})([smhd])", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 30m, 6h or 2d")
    return int(found[1]) * _UNITS[found[2]]


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-11-28T08:00Z") from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


if __name__ == "__main__":
    main()
