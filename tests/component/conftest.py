"""The HTTP surface in one process: FastAPI and vLLM's front half, no Ray cluster, no engine."""

import os
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using extra keyword arguments on `Field` is deprecated")  # ray.serve
    warnings.filterwarnings("ignore", message="`torch.jit.script", category=DeprecationWarning)  # torch inside vLLM
    import api.replica  # noqa: F401
    from api.state.lifecycle import ChatState
    from api.state.redis import client as redis_client
    from cluster.config.state import StateConfig
    from cluster.services.postgres import LocalPostgres
    from cluster.services.redis import LocalRedis
    from tests.component.app_with_postgres import without_syncs
    from tests.component.emptied import emptied
    from tests.component.killable_redis import KillableRedis

import pytest

from tests.component.reached import reached

REDIS_PATIENCE_S = 1.5


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server for all tests."""
    server = LocalPostgres(tmp_path_factory.mktemp("state") / "postgres")
    url = server.start()
    without_syncs(url)
    yield url
    server.stop()


@pytest.fixture(scope="session", autouse=True)
def patience_with_redis() -> Iterator[None]:
    """Where many tests run at once, a Redis that is there may take longer to answer than a service waits for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis_client, "TIMEOUT_S", REDIS_PATIENCE_S)
        yield


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Redis for all tests. It may have keys of earlier tests."""
    server = LocalRedis(tmp_path_factory.mktemp("state") / "redis")
    yield server.start()
    server.stop()


@pytest.fixture
def killable_redis(tmp_path: Path) -> Iterator[KillableRedis]:
    made = KillableRedis(tmp_path / "redis")
    yield made
    made.close()


@pytest.fixture
def has_titles() -> bool:
    """Whether conversations get titles, for which the model is asked."""
    return False


@pytest.fixture
async def state(postgres: str, redis: str, tmp_path: Path, has_titles: bool) -> AsyncIterator[ChatState]:
    """Reached, and empty."""
    emptied(postgres)
    urls: dict[str, Any] = {"database_url": postgres, "redis_url": redis}
    opened = ChatState(StateConfig(**urls, data_dir=str(tmp_path), titles=has_titles))
    async with reached(opened):
        yield opened
