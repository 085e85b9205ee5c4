"""What `serve deploy` does to a cluster that runs, as docs/clusters.md says: by the rules of Ray Serve itself."""

import copy
import math
from typing import Any

import pytest

from tests.cluster_files.node_types import application, demands, launched, serve_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Serve's own, as it is imported


def code_version(application: dict[str, Any]) -> str:
    """Replicas of another code version are replaced, in all deployments of the application."""
    from ray.serve._private.deploy_utils import get_app_code_version
    from ray.serve.schema import ServeApplicationSchema

    return str(get_app_code_version(ServeApplicationSchema(**application)))


def test_any_change_of_the_arguments_replaces_all_replicas() -> None:
    (before,) = serve_config()["applications"]
    after = copy.deepcopy(before)
    after["args"]["decode"]["replicas"] += 1
    assert code_version(after) != code_version(before)


def test_number_of_replicas_beside_the_arguments_replaces_no_replica() -> None:
    from ray.serve._private.config import DeploymentConfig
    from ray.serve._private.version import DeploymentVersion

    from decode.deployment import DecodeWorker
    from prefill.deployment import PrefillWorker

    (before,) = serve_config()["applications"]
    deployments = [{"name": worker.__name__, "num_replicas": 99} for worker in (PrefillWorker, DecodeWorker)]
    assert code_version(before | {"deployments": deployments}) == code_version(before)
    few, many = (DeploymentVersion("1", DeploymentConfig(num_replicas=number), {}) for number in (8, 99))
    assert few == many


def test_one_replica_in_five_is_replaced_at_a_time() -> None:
    from ray.serve._private.config import DeploymentConfig

    assert DeploymentConfig().rolling_update_percentage == 0.2


@pytest.mark.parametrize("file", ["aws", "gcp"])
def test_ingress_nodes_have_room_for_the_replicas_that_an_update_starts_first(file: str) -> None:
    config = application(file).ingress
    asked = demands(file)
    num_more = math.ceil(config.replicas * config.max_surge_percent / 100)
    assert num_more
    usual = asked["ingress"] + asked["scheduler"]
    assert launched(file, usual + asked["ingress"][:num_more]) == launched(file, usual)
