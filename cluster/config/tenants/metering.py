"""The config section `metering:`."""

import msgspec

from cluster.config.units import Days


class MeteringConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ledger of what tenants use, and what it costs (docs/tenants.md)."""

    prices: str | None = None
    """The file of prices, such as `conf/prices.yaml`. A relative path is inside the repository. Without one, usage is
    recorded and costs nothing. With one, the service starts only if the served model has a price, today and in each
    later version.
    """
    keep_days: Days | None = None
    """Days for which rows of the ledger are kept at least: they go by whole months. If it is missing, they are kept
    forever. Fewer take less disk; more answer questions about older invoices.
    """
    publishes: bool = False
    """Whether each row is also put into the stream `baton:usage` of Redis, which takes up to 64 MiB of its memory."""
