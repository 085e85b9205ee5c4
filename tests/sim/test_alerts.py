"""The alerts over simulated hours: the production Scheduler and sessions run on a virtual clock, the production metrics
are read every 15 virtual seconds, and promtool evaluates the rules over them.

Three workers, a large model, six requests at most on each: they bear little more than one request a second, so that an
hour has few requests to simulate.
"""

import asyncio
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest

from api.server.receipt_log import ReceiptLog
from cluster.messages.ids import Pool
from cluster.metrics.page import render, scrape
from cluster.metrics.scaling import set_configured
from cluster.observability.alerts.alert import JOB
from cluster.observability.alerts.table import ALERTS
from cluster.repository import REPO_ROOT
from cluster.simulation.clock import VirtualLoop
from cluster.simulation.experiment import Cluster
from cluster.simulation.pools.simulated_pools import SimulatedPools
from cluster.simulation.run import Client, Pauses, pass_pauses, serve_clients
from cluster.simulation.traffic.mixes import generate
from cluster.simulation.traffic.named_mixes import MIXES
from cluster.simulation.traffic.workload import SimRequest, at_rate, rate_per_s
from cluster.slo import SloConfig
from cluster.uncollected import uncollected
from router.pending_placements import PendingPlacements
from router.session.receipt import RouteReceipt
from router.state import RouterState
from tests.component.monitoring import RULES, check_rules
from tests.unit.cluster.observability.test_queries import expanded

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using extra keyword arguments on `Field` is deprecated")  # ray.serve
    from router.deployment import export

EVERY_S = 15
"""The scrape interval of conf/prometheus/prometheus.yml."""
NORMAL_PER_S = 0.8
SLOS = SloConfig()
THREE = Cluster(num_workers=3, model="llama-3.1-405b", device="h200", tensor_parallel=8, max_decoding=6)
COVERED = {
    "BatonGoodputLow",
    "BatonClassGoodputLow",
    "BatonNothingGood",
    "BatonClassNothingGood",
    "BatonTtftHigh",
    "BatonAbortsHigh",
    "BatonMostAborted",
    "BatonPrefixHitsLow",
    "BatonWorkerSilent",
    "BatonPoolEmpty",
    "BatonPoolSmall",
    "BatonKvUsageHigh",
    "BatonSchedulerAway",
}
"""The alerts about which a simulated hour says something (docs/operating.md). The figures of the others are 0 in it, or
missing: nothing is handed over wrongly, probed, billed or certified in the simulation.
"""

Samples = dict[str, list[float | None]]
"""The samples of each series, by its name with its labels. None where the page did not have the series."""


class CountedClient(Client):
    """A client whose receipts are counted as an ingress counts them."""

    receipts = ReceiptLog(0)

    def closed(self, receipt: RouteReceipt) -> None:
        super().closed(receipt)
        self.receipts.closed(receipt)


def a_workload(*parts: tuple[float, float]) -> list[SimRequest]:
    """Conversations. `parts`: for how many seconds there are how many requests a second."""
    isolated_s, found, begins_s = THREE.isolated_prefill_s, list[SimRequest](), 0.0
    for seed, (seconds, per_s) in enumerate(parts):
        arrivals = generate(MIXES["chat"], round(seconds * per_s), seed)
        late = [arrival.moved(begins_s * per_s / rate_per_s(arrivals)) for arrival in arrivals]
        scale = per_s / rate_per_s(arrivals)
        found += at_rate(late, scale, lambda row: SLOS.of(row.slo_class).resolve(isolated_s(row.num_prompt)))
        begins_s += seconds
    return found


def samples_of(workload: list[SimRequest]) -> Samples:
    """What Prometheus would have scraped of the service while it serves the workload."""
    samples: Samples = {}

    async def run() -> None:
        set_configured([""], {Pool.PREFILL: 1, Pool.DECODE: THREE.num_workers - 1})
        state = RouterState(SLOS)
        scheduler, pauses = PendingPlacements(state), Pauses()
        pass_pauses(scheduler, pauses)
        setting = THREE.split(num_prefill=1)
        pools = SimulatedPools(setting, scheduler)
        scraping = asyncio.create_task(scrape_all(state, samples))
        await serve_clients(workload, lambda number, sim: CountedClient(number, sim, setting, pools, scheduler, pauses))
        scraping.cancel()

    with uncollected():
        VirtualLoop().run(run())
    return samples


async def scrape_all(state: RouterState, samples: Samples) -> None:
    loop, number = asyncio.get_running_loop(), 0
    while True:
        export(state, loop.time())
        page = render([scrape("scheduler", "s")]).decode()
        for line in page.splitlines():
            if line.startswith("baton_"):
                series, _, value = line.rpartition(" ")
                known = samples.setdefault(series, [])
                known += [None] * (number - len(known))
                known.append(float(value))
        number += 1
        await asyncio.sleep(EVERY_S)


def at_work(samples: Samples) -> set[str]:
    """The alerts of which a figure changes in the simulation, or is not 0. Nothing counts those of the others."""
    alive = {key.partition("{")[0] for key, values in samples.items() if any(values)}
    return {
        alert.name for alert in ALERTS if alive & set(re.findall(r"(?<![\w:])baton_\w+", expanded(alert.condition)))
    }


def check_fired(folder: Path, samples: Samples, fired: Mapping[float, set[str]]) -> None:
    """Check which alerts have fired, until some minutes."""
    number = max(map(len, samples.values()))
    read = set(re.findall(r"baton_\w+", RULES.read_text()))
    series = [{"series": f'up{{job="{JOB}",instance="i"}}', "values": f"1x{number}"}]
    for key, values in samples.items():
        if key.partition("{")[0] in read:
            padded = [*values, *[None] * (number - len(values))]
            series.append({"series": key, "values": " ".join("_" if v is None else f"{v:g}" for v in padded)})
    asked = [
        {
            "expr": 'group by (alertname) (max_over_time(ALERTS{alertstate="firing"}[12h]))',
            "eval_time": f"{round(minute * 60)}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }
        for minute, names in fired.items()
    ]
    check_rules(folder, [{"interval": f"{EVERY_S}s", "input_series": series, "promql_expr_test": asked}])


@pytest.mark.timeout(280)
def test_page_names_the_alerts_about_which_the_hour_says_nothing() -> None:
    text = (REPO_ROOT / "docs/operating.md").read_text().partition("It says nothing about")[2].partition(":")[0]
    others = {alert.name for alert in ALERTS} - COVERED
    assert set(re.findall(r"Baton\w+", text)) == others, "docs/operating.md: how the alerts are tested"


def test_no_alert_fires_in_an_hour_of_normal_load(tmp_path: Path) -> None:
    samples = samples_of(a_workload((60 * 60, NORMAL_PER_S)))
    assert at_work(samples) == COVERED
    check_fired(tmp_path, samples, {60: set()})


@pytest.mark.timeout(280)
def test_goodput_is_low_when_the_load_more_than_doubles(tmp_path: Path) -> None:
    samples = samples_of(a_workload((8 * 60, NORMAL_PER_S), (15 * 60, 2.25 * NORMAL_PER_S)))
    check_fired(tmp_path, samples, {8: set(), 23: {"BatonGoodputLow", "BatonClassGoodputLow", "BatonTtftHigh"}})
