"""TenantCounts: the requests of each tenant, for an operator who wants metrics by tenant (`metrics.tenants`)."""

from cluster.metrics.tenants import TENANT_GOODPUT, TENANT_REQUESTS, TENANT_TOKENS
from router.session.receipt import RouteReceipt

OTHER = "other"
"""All tenants together that have no series of their own. No name of a tenant is so short."""
NOBODY = "none"
"""Requests without a credential."""


class TenantCounts:
    def __init__(self, most: int) -> None:
        """`most`: tenants that have series of their own."""
        self._most = most
        self._named: set[str] = set()

    def closed(self, tenant: str, receipt: RouteReceipt) -> None:
        name = self._name(tenant or NOBODY)
        TENANT_REQUESTS.labels(name, receipt.outcome).inc()
        TENANT_TOKENS.labels(name, "prompt").inc(receipt.num_prompt_tokens)
        TENANT_TOKENS.labels(name, "output").inc(receipt.num_output_tokens)
        if (result := receipt.result) is not None:
            TENANT_GOODPUT.labels(name, result).inc()

    def _name(self, tenant: str) -> str:
        """The label of a tenant. A tenant keeps it for the life of the process, so that its counters never restart."""
        if tenant not in self._named:
            if len(self._named) >= self._most:
                return OTHER
            self._named.add(tenant)
        return tenant
