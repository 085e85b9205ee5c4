"""The stores of an ingress replica in PostgreSQL."""

from typing import NamedTuple

from api.state.encryption.tenant_keys import TenantKeys
from api.state.event_streams.event_writer import EventWriter
from api.state.event_streams.live_tails import LiveTails
from api.state.event_streams.orphans import Orphans
from api.state.event_streams.response_events import ResponseEvents
from api.state.postgres.database import Database
from api.state.postgres.ledger.ledger_jobs import LedgerJobs
from api.state.postgres.ledger.ledger_store import LedgerStore
from api.state.postgres.ledger.usage_sums import UsageSums
from api.state.postgres.stores.appeals import AppealStore
from api.state.postgres.stores.audit import AuditStore
from api.state.postgres.stores.chat_completions import ChatCompletions
from api.state.postgres.stores.conversations import Conversations
from api.state.postgres.stores.feedback import FeedbackStore
from api.state.postgres.stores.history_space import HistorySpace
from api.state.postgres.stores.items import ItemLimits
from api.state.postgres.stores.responses import Responses
from api.state.postgres.stores.retention import Retention
from api.state.postgres.stores.search import Search
from api.state.postgres.stores.summaries import ContextStore
from api.state.postgres.tenant_transaction import TenantDatabase
from api.state.redis.read_cache import ReadCache
from cluster.config.state import StateConfig


class Stores(NamedTuple):
    """One store for each kind of object, and the background jobs that belong to them."""

    conversations: Conversations
    responses: Responses
    response_events: ResponseEvents
    event_writer: EventWriter
    """Writes the events of the responses that this replica generates."""
    orphans: Orphans
    context: ContextStore
    chat_completions: ChatCompletions
    feedback: FeedbackStore
    search: Search
    audit: AuditStore
    appeals: AppealStore
    retention: Retention
    usage: UsageSums
    ledger: LedgerStore
    ledger_jobs: LedgerJobs


def stores_in(
    database: Database,
    writing: Database,
    ledger: LedgerStore,
    keys: TenantKeys,
    live_tails: LiveTails,
    cache: ReadCache,
    config: StateConfig,
) -> Stores:
    """`writing`: the same database on a connection of its own, for the events of running responses."""
    tenants = TenantDatabase(database, keys)
    limits = ItemLimits(config.max_item_bytes, config.max_conversation_items, config.max_conversation_bytes)
    return Stores(
        conversations=Conversations(tenants, limits),
        responses=Responses(tenants, limits, HistorySpace(config.max_histories_bytes)),
        response_events=ResponseEvents(tenants),
        event_writer=EventWriter(ResponseEvents(TenantDatabase(writing, keys)), live_tails),
        orphans=Orphans(tenants),
        context=ContextStore(tenants),
        chat_completions=ChatCompletions(tenants),
        feedback=FeedbackStore(tenants),
        search=Search(tenants, config.words_language, config.max_connections),
        audit=AuditStore(tenants),
        appeals=AppealStore(tenants),
        retention=Retention(tenants, cache, config),
        usage=UsageSums(database),
        ledger=ledger,
        ledger_jobs=LedgerJobs(database),
    )
