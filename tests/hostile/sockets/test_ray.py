"""Where the Ray listens that `baton serve` starts."""

from cluster.cli.serve.ray_settings import ray_environment
from tests.hostile.sockets.test_interfaces import a_config


def test_ray_listens_on_loopback_where_baton_does_and_it_is_our_own() -> None:
    variable = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
    assert ray_environment(a_config(), {})[variable] == "0"
    assert ray_environment(a_config(), {variable: "1"})[variable] == "1"
    assert variable not in ray_environment(a_config(), {"RAY_ADDRESS": "192.0.2.1:6379"})
    assert variable not in ray_environment(a_config(ingress={"host": "0.0.0.0"}), {})
