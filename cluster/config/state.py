"""The section `state:`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cluster.config.units import Count, Days

TenantName = Annotated[str, Meta(pattern=r"^([0-9a-f]{16}|anonymous)\Z")]
"""As `baton tenant` prints it."""
Bytes = Annotated[int, Meta(ge=1 << 10, le=1 << 50)]


class TenantStateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is other for one tenant. What is not named is as below."""

    retention_days: Days | UnsetType | None = UNSET
    """None: for ever."""
    max_bytes: Bytes | UnsetType | None = UNSET
    """None: as much as there is room for."""


class StateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where conversations are kept. See docs/state.md."""

    database_url: str | None = None
    """Of a PostgreSQL database that Baton may make its tables in, "postgresql://user@host/name". None: a server of its
    own, which is right for one machine: it runs where the ingress runs. The environment variable BATON_DATABASE_URL
    wins.
    """
    redis_url: str | None = None
    """Of a Redis, "redis://host:6379/0": it holds what can be made anew. None: a server of its own, where the ingress
    runs. The environment variable BATON_REDIS_URL wins.
    """
    data_dir: str = ".baton/data"
    """Where servers of its own keep their data, and the master key is unless BATON_MASTER_KEY gives it. Relative ones
    are in the repository.
    """
    max_connections: Count = 8
    """To PostgreSQL, per ingress replica, for what clients ask. Two more write what is generated, and see whether it is
    there.
    """
    keep_deleted_days: Annotated[float, Meta(ge=0, le=3650)] = 7.0
    """What clients have deleted is gone for them at once, and from the database after so long. Longer can be restored
    by hand; shorter is what users who delete something expect.
    """
    cache_s: Annotated[float, Meta(ge=0, le=86400)] = 600.0
    """How long what was read may be shown again while PostgreSQL is away. Longer bridges longer outages and shows older
    copies; 0 shows none.
    """
    retention_days: Days | None = None
    """Conversations that nobody has touched for so long are purged, and responses without a conversation that are so
    old. None: for ever. Shorter protects who said something; longer keeps what they may come back to.
    """
    tenants: dict[TenantName, TenantStateConfig] = {}
    """By the names that `baton tenant` prints."""
    max_tenant_bytes: Bytes | None = 10 << 30
    """Stored for one tenant, sealed texts and half a kilobyte for each row; what would be more is refused, but for the
    answer to a turn. None: as much as PostgreSQL's disk has. More lets one tenant fill the disk of all; less ends with
    an error what a tenant would have kept.
    """
    max_item_bytes: Bytes = 10 << 20
    """Of one item, of the instructions and tools of a response together, and of the messages of a stored chat
    completion. A larger one takes the memory of an ingress several times over while it is read, and holds up its other
    requests for some milliseconds a megabyte; a smaller one refuses long prompts and images.
    """
    max_conversation_bytes: Bytes = 256 << 20
    """Of a conversation; what was replaced counts. What would exceed it is refused, but for the answer to a turn. With
    more, PostgreSQL reads longer for a turn of a long conversation; with less they end sooner.
    """
    max_histories_bytes: Bytes = 512 << 20
    """Of the conversations, or chains of `previous_response_id`, that the turns in progress of an ingress replica
    follow, half of it for one tenant; they take about four times as much memory. One that is larger than all of it is
    read alone. More lets few long conversations take the ingress's memory; less refuses turns in them, to be sent
    again, when there are many at once.
    """
    max_conversation_items: Count = 10_000
    """Of a conversation; those that were replaced count. What would exceed it is refused, but for the answer to a turn.
    Each turn reads what its conversation has: with more, long ones take the ingress and PostgreSQL longer, with less
    they end sooner.
    """
    max_response_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 32 << 20
    """That a response may say, with the log probabilities of its tokens: it ends there, `incomplete`, as by
    `max_output_tokens`. So much is kept in memory while it is generated, and for an hour with its events. More lets few
    long answers with `top_logprobs` take the ingress's memory; less cuts them off: a token takes about 10 bytes, and
    2,000 with 20 log probabilities.
    """
    search: bool = True
    """Whether messages can be searched. Their words are kept then, as keyed hashes, which tell who has the disk which
    messages share a word; a turn takes about a millisecond longer.
    """
    search_language: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]*\Z")] = "simple"
    """A text search configuration of PostgreSQL. `simple` is fair to all languages; that of one, `english` say, finds
    "ships" by "ship", and looks for no "the". What was said before is indexed anew after a change.
    """
    titles: bool = True
    """Whether the model gives conversations a title after their first turn: a short request of class batch each."""
    master_key: Annotated[str, Meta(pattern=r"^[\w.]+:\w+\Z")] | None = None
    """"package.module:callable" that gives the master key, for a key management service (docs/state.md). None:
    BATON_MASTER_KEY, or else a file in `data_dir`.
    """

    def retention_days_of(self, tenant: str) -> float | None:
        own = self.tenants.get(tenant, TenantStateConfig()).retention_days
        return self.retention_days if own is UNSET else own

    def max_bytes_of(self, tenant: str) -> int | None:
        own = self.tenants.get(tenant, TenantStateConfig()).max_bytes
        return self.max_tenant_bytes if own is UNSET else own

    @property
    def words_language(self) -> str:
        """Empty where nothing is searched."""
        return self.search_language if self.search else ""
