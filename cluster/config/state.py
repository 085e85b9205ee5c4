"""The config section `state:`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cluster.config.units import Count, Days

TenantName = Annotated[str, Meta(pattern=r"^([0-9a-f]{16}|anonymous)\Z")]
"""The name of a tenant, as `baton tenant` prints it."""
Bytes = Annotated[int, Meta(ge=1 << 10, le=1 << 50)]


class TenantStateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one tenant. A setting that is missing has the value of the section `state:`."""

    retention_days: Days | UnsetType | None = UNSET
    """As `state.retention_days`, for this tenant. `null` keeps its conversations forever."""
    max_bytes: Bytes | UnsetType | None = UNSET
    """As `state.max_tenant_bytes`, for this tenant. `null` sets no limit."""


class StateConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where conversations are stored, and for how long (docs/state.md)."""

    database_url: str | None = None
    """URL of a PostgreSQL database in which Baton may make its tables, "postgresql://user@host/name". If it is missing,
    Baton runs an embedded PostgreSQL on the ingress's node, which is right for one machine. The environment variable
    BATON_DATABASE_URL replaces this value.
    """
    redis_url: str | None = None
    """URL of a Redis, "redis://host:6379/0", for data that can be made again. If it is missing, Baton runs an embedded
    Redis on the ingress's node. The environment variable BATON_REDIS_URL replaces this value.
    """
    limits_redis_url: str | None = None
    """URL of a Redis that counts limits and budgets and nothing else, with `maxmemory-policy noeviction`. If it is
    missing, they are counted in the Redis of `redis_url`; if that is missing, too, Baton runs a second embedded Redis.
    The environment variable BATON_LIMITS_REDIS_URL replaces this value.
    """
    data_dir: str = ".baton/data"
    """Folder for the data of the embedded servers, and for the master key unless BATON_MASTER_KEY contains it. A
    relative folder is inside the repository.
    """
    max_connections: Count = 8
    """Connections to PostgreSQL per ingress replica for the requests of clients. Two more connections store what is
    generated, and look credentials up. More take memory in PostgreSQL; fewer make requests wait for each other.
    """
    keep_deleted_days: Annotated[float, Meta(ge=0, le=3650)] = 7.0
    """Days after which what clients deleted is removed from the database. Clients no longer see it at once. More days
    allow a restore by hand for longer; fewer days are closer to what users expect of a deletion.
    """
    cache_s: Annotated[float, Meta(ge=0, le=86400)] = 600.0
    """Most age of a stale read, which is shown while PostgreSQL is away, in seconds. Longer bridges longer outages;
    shorter shows newer copies. 0 shows no stale reads.
    """
    retention_days: Days | None = None
    """Days without a change after which a conversation is deleted, and age in days at which a response without a
    conversation is deleted. If it is missing, both are kept forever. Fewer days protect users' privacy better; more
    days keep what users may come back to.
    """
    audit_days: Days | None = None
    """Age in days at which safety events, with their evidence, and the appeals against them are deleted. If it is
    missing, they are kept forever. Fewer days keep texts of users for less time; more days prove for longer what was
    blocked, and why.
    """
    tenants: dict[TenantName, TenantStateConfig] = {}
    """Settings of single tenants, by the name that `baton tenant` prints."""
    max_tenant_bytes: Bytes | None = 10 << 30
    """Most bytes that are stored for one tenant: sealed texts, and half a kilobyte for each row. More is refused,
    except for the answer to a turn. `null` sets no limit. A higher limit lets one tenant fill the disk of all; a lower
    limit refuses what the tenant would have stored.
    """
    max_item_bytes: Bytes = 10 << 20
    """Most bytes of one item, of the instructions and tools of a response together, and of the messages of a stored
    chat completion. With a higher limit, one item takes several times its size of the ingress's memory while it is
    read, and delays other requests by some milliseconds per megabyte; a lower limit refuses long prompts and images.
    """
    max_conversation_bytes: Bytes = 256 << 20
    """Most bytes of one conversation, replaced items included. More is refused, except for the answer to a turn. With a
    higher limit, PostgreSQL reads longer for each turn of a long conversation; with a lower limit, conversations end
    sooner.
    """
    max_histories_bytes: Bytes = 512 << 20
    """Most bytes of the conversations, and of the chains of `previous_response_id`, that the turns in progress of an
    ingress replica read. One tenant may take half of it. The histories take about four times as much memory. A history
    that is larger than the limit is read alone. A higher limit lets a few long conversations take the ingress's memory;
    with a lower limit, turns are refused when many long conversations go on at once.
    """
    max_conversation_items: Count = 10_000
    """Most items of one conversation, replaced items included. More is refused, except for the answer to a turn. Each
    turn reads all items of its conversation. With a higher limit, long conversations take more time of the ingress and
    PostgreSQL; with a lower limit, conversations end sooner.
    """
    max_response_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 32 << 20
    """Most bytes of the output of one response, log probabilities included. At the limit the response ends as
    `incomplete`, as with `max_output_tokens`. The output is kept in memory while it is generated, and its events for an
    hour after that. A token takes about 10 bytes, and 2,000 with 20 log probabilities. A higher limit lets a few long
    answers with `top_logprobs` take the ingress's memory; a lower limit cuts them off.
    """
    search: bool = True
    """Whether messages can be searched. If so, their words are stored as keyed hashes, from which a person with the
    disk can tell which messages share a word, and a turn takes about a millisecond longer.
    """
    search_language: Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]*\Z")] = "simple"
    """A text search configuration of PostgreSQL. `simple` treats all languages alike. The configuration of one
    language, e.g. `english`, finds "ships" by "ship" and ignores "the". After a change, stored messages are indexed
    again.
    """
    titles: bool = True
    """Whether the model gives each conversation a title after its first turn: one short request of class batch."""
    master_key: Annotated[str, Meta(pattern=r"^[\w.]+:\w+\Z")] | None = None
    """A callable "package.module:callable" that returns the master key, for a key management service (docs/state.md).
    If it is missing, the master key comes from BATON_MASTER_KEY, or else from a file in `data_dir`.
    """

    def retention_days_of(self, tenant: str) -> float | None:
        own = self.tenants.get(tenant, TenantStateConfig()).retention_days
        return self.retention_days if own is UNSET else own

    def max_bytes_of(self, tenant: str) -> int | None:
        own = self.tenants.get(tenant, TenantStateConfig()).max_bytes
        return self.max_tenant_bytes if own is UNSET else own

    @property
    def words_language(self) -> str:
        """The language in which words are indexed. Empty if search is off."""
        return self.search_language if self.search else ""
