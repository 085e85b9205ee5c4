"""Starting the engine of this replica: its process joins the cluster, and the engine gets the replica's identity."""

from cluster.config.network import NetworkConfig
from cluster.config.pools import PoolConfig
from cluster.engine.port import WorkerEngine
from cluster.messages.ids import Pool
from cluster.observability.logging import set_up_logging
from cluster.serve_context import join_cluster, own_interface_of, own_rank, own_worker_id
from cluster.uncollected import uncollected


def start_engine(pool: Pool, config: PoolConfig, network: NetworkConfig) -> WorkerEngine:
    """Blocks until the engine is loaded. Only a process with an engine imports vLLM, which takes seconds of CPU."""
    set_up_logging(replica=own_worker_id())  # before libraries are imported that configure logging themselves
    with uncollected():
        from cluster.engine.engine import Engine
    join_cluster(network.tls)
    return Engine(pool, config, worker=own_worker_id(), rank=own_rank(), interface=own_interface_of(network.host))
