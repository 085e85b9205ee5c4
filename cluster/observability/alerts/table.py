"""The table of alerts, in the order of the runbooks. Pure."""

from cluster.observability.alerts.alert import Alert, AlertGroup
from cluster.observability.alerts.quality import QUALITY
from cluster.observability.alerts.requests import GOODPUT, REQUESTS, TTFT
from cluster.observability.alerts.service import METRICS, RECORDS
from cluster.observability.alerts.workers import HANDOFFS, POOLS, SCHEDULER

GROUPS: tuple[AlertGroup, ...] = (GOODPUT, TTFT, REQUESTS, POOLS, SCHEDULER, HANDOFFS, QUALITY, RECORDS, METRICS)
ALERTS: tuple[Alert, ...] = tuple(alert for group in GROUPS for alert in group.alerts)
