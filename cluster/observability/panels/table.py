"""The table of panels: what dashboards and pages show, in their order. Pure."""

from cluster.observability.panels.handoffs import HANDOFFS, QUALITY
from cluster.observability.panels.panel import Subject
from cluster.observability.panels.requests import GOODPUT, LATENCY
from cluster.observability.panels.scheduling import ENGINES, POOLS, SCHEDULER
from cluster.observability.panels.service import PROCESSES, SAFETY, TENANTS

SUBJECTS: tuple[Subject, ...] = (
    GOODPUT,
    LATENCY,
    SCHEDULER,
    POOLS,
    ENGINES,
    HANDOFFS,
    QUALITY,
    TENANTS,
    SAFETY,
    PROCESSES,
)
