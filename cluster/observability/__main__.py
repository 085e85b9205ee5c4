"""Writes the dashboard, the rules and the list of both in the docs from the tables of panels and of alerts.

python -m cluster.observability [--docs URL]
"""

import argparse
import json
from pathlib import Path

from cluster.observability.alerts.rules import rules
from cluster.observability.alerts.table import ALERTS, GROUPS
from cluster.observability.panels.grafana import dashboard
from cluster.observability.panels.table import SUBJECTS
from cluster.observability.reference import updated
from cluster.repository import REPO_ROOT

DOCS = "docs"
"""Where the links of alerts and panels lead: the folder of this repository."""


def generated(docs: str = DOCS) -> dict[Path, str]:
    """The text of each generated file. `docs`: the address of the folder with `runbooks.md`."""
    anchors = {alert.name: alert.anchor for alert in ALERTS}
    page = REPO_ROOT / "docs/operating.md"
    return {
        REPO_ROOT / "conf/grafana/baton.json": json.dumps(dashboard(SUBJECTS, docs, anchors), indent=1) + "\n",
        REPO_ROOT / "conf/prometheus/baton.rules.yml": rules(GROUPS, docs),
        page: updated(page.read_text(), ALERTS, SUBJECTS),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster.observability", description=__doc__)
    parser.add_argument(
        "--docs",
        default=DOCS,
        metavar="URL",
        help="where your users find docs/, which the links of alerts and panels begin with (default: %(default)s)",
    )
    for file, text in generated(parser.parse_args().docs.rstrip("/")).items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
