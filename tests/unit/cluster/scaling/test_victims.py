from cluster.messages.ids import WorkerId
from cluster.scaling.victims import Replica, victims


def a_replica(worker: str, node: str | None, deployment: str = "decode", *, is_running: bool = True) -> Replica:
    return Replica(worker=WorkerId(worker), deployment=deployment, node=node, is_running=is_running)


def test_newest_replica_of_a_node_is_first() -> None:
    replicas = [a_replica("d0", "a"), a_replica("d1", "a"), a_replica("d2", "a")]
    assert victims(replicas, "decode", head=None) == ["d2", "d1", "d0"]


def test_head_node_is_last_whatever_else_runs_there() -> None:
    replicas = [a_replica("d0", "a"), a_replica("d1", "b"), a_replica("x", "b", "ingress")]
    assert victims(replicas, "decode", head="a") == ["d1", "d0"]


def test_node_with_fewer_replicas_of_all_deployments_is_first() -> None:
    replicas = [a_replica("p0", "a", "prefill"), a_replica("d0", "a"), a_replica("d1", "b")]
    assert victims(replicas, "decode", head=None) == ["d1", "d0"]


def test_node_without_the_labels_is_before_those_that_have_them() -> None:
    replicas = [a_replica("d0", "a"), a_replica("d1", "b"), a_replica("p0", "b", "prefill")]
    assert victims(replicas, "decode", head=None, mismatching=frozenset("b")) == ["d1", "d0"]


def test_between_equal_nodes_the_first_one_stays_first() -> None:
    replicas = [a_replica("d0", "a"), a_replica("d1", "b"), a_replica("d2", "c")]
    assert victims(replicas, "decode", head=None) == ["d0", "d1", "d2"]


def test_replicas_that_do_not_run_are_no_victims() -> None:
    replicas = [a_replica("d0", "a"), a_replica("d1", None, is_running=False)]
    assert victims(replicas, "decode", head=None) == ["d0"]
