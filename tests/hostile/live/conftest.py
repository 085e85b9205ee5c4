"""A running Baton on real engines, for all tests of this folder."""

from tests.real_cluster.conftest import _whole, client, guard_port, model, service

__all__ = ["_whole", "client", "guard_port", "model", "service"]
