"""All that is kept in PostgreSQL, by what it is."""

from typing import NamedTuple

from api.state.encryption.tenant_keys import TenantKeys
from api.state.event_streams.event_writer import EventWriter
from api.state.event_streams.live_tails import LiveTails
from api.state.event_streams.orphans import Orphans
from api.state.event_streams.response_events import ResponseEvents
from api.state.postgres.database import Database
from api.state.postgres.stores.chat_completions import ChatCompletions
from api.state.postgres.stores.conversations import Conversations
from api.state.postgres.stores.feedback import FeedbackStore
from api.state.postgres.stores.history_space import HistorySpace
from api.state.postgres.stores.items import Limits
from api.state.postgres.stores.responses import Responses
from api.state.postgres.stores.retention import Retention
from api.state.postgres.stores.search import Search
from api.state.postgres.stores.summaries import ContextStore
from api.state.redis.read_cache import ReadCache
from cluster.config.state import StateConfig


class Stores(NamedTuple):
    conversations: Conversations
    responses: Responses
    response_events: ResponseEvents
    log_writer: EventWriter
    """Of the responses that are generated here."""
    orphans: Orphans
    context: ContextStore
    chat_completions: ChatCompletions
    feedback: FeedbackStore
    search: Search
    purges: Retention


def stores_in(
    database: Database, writing: Database, keys: TenantKeys, tails: LiveTails, cache: ReadCache, config: StateConfig
) -> Stores:
    """`writing`: the same database, for what is generated."""
    limits = Limits(config.max_item_bytes, config.max_conversation_items, config.max_conversation_bytes)
    return Stores(
        conversations=Conversations(database, keys, limits),
        responses=Responses(database, keys, limits, HistorySpace(config.max_histories_bytes)),
        response_events=ResponseEvents(database, keys),
        log_writer=EventWriter(ResponseEvents(writing, keys), tails),
        orphans=Orphans(database, keys),
        context=ContextStore(database, keys),
        chat_completions=ChatCompletions(database, keys),
        feedback=FeedbackStore(database, keys),
        search=Search(database, keys, config.words_language, config.max_connections),
        purges=Retention(database, cache, config),
    )
