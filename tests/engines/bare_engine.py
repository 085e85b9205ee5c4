"""An engine without the worker around it, as conf/local.yaml has it."""

from collections.abc import Callable

import yaml

from cluster.config.application import parse
from cluster.config.pools import PoolConfig
from cluster.engine.engine import Engine
from cluster.engine.port import EngineHooks
from cluster.messages.ids import Pool, WorkerId
from cluster.network.interface import Interface
from cluster.network.secret import establish_secret
from cluster.repository import REPO_ROOT
from kvtransfer.lease_terms import LeaseEnd, LeaseId

CONFIG = parse(yaml.safe_load((REPO_ROOT / "conf/local.yaml").read_text())["applications"][0]["args"])


def a_bare_engine(
    pool: Pool, config: PoolConfig, on_ended_leases: Callable[[list[tuple[LeaseId, LeaseEnd]]], None]
) -> Engine:
    """Start an engine. The caller is a process of its own, which keeps the secret that its engines share."""
    establish_secret(lambda proposed: proposed)
    engine = Engine(pool, config, worker=WorkerId(pool), rank=0, interface=Interface("127.0.0.1", "lo"))
    engine.attach(EngineHooks(on_prompt=lambda sources: None, on_step=lambda: None, on_ended_leases=on_ended_leases))
    return engine
