"""The services that the routes of an ingress replica use, made when the replica starts (api/http_app.py)."""

from dataclasses import dataclass

from fastapi.requests import HTTPConnection

from api.charging.charging import Charging
from api.completions.store_writer import CompletionStoreWriter
from api.context.manager import ContextManager
from api.edge.byte_budget import ByteBudget
from api.edge.capacity import Capacity, Standstill
from api.frontend.frontend import Frontend
from api.responses.chain_memory import ChainSpace
from api.responses.running_turns import RunningTurns
from api.responses.titles import Titles
from api.server.cluster_port import ClusterPort
from api.server.receipt_log import ReceiptLog
from api.state.lifecycle import ChatState
from cluster.config.ingress import IngressConfig


@dataclass(frozen=True, kw_only=True)
class IngressServices:
    """The objects that the routes of one ingress replica share. All of them live as long as the replica."""

    config: IngressConfig
    frontend: Frontend
    cluster: ClusterPort
    receipts: ReceiptLog
    chat_state: ChatState
    charging: Charging | None
    """None where nothing is recorded."""
    completion_writer: CompletionStoreWriter
    context: ContextManager
    titles: Titles
    turns: RunningTurns
    capacity: Capacity
    standstill: Standstill
    body_budget: ByteBudget
    chain_space: ChainSpace

    @property
    def max_sequences(self) -> int:
        """Most sequences that one request may ask for, in number."""
        return min(self.config.max_sequences_per_request, self.config.max_ongoing_requests)


def services_of(request: HTTPConnection) -> IngressServices:
    services: IngressServices = request.app.state.services
    return services
