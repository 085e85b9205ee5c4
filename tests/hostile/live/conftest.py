"""A running Baton on real engines, for all tests of this folder."""

from tests.real_cluster.conftest import _whole, client, model, service

__all__ = ["_whole", "client", "model", "service"]
