import inspect

from cluster.messages.ids import RequestId, WorkerId
from router.load.what_if import without
from router.load.worker_state import WorkerState
from router.prediction.path_bias import PathBias
from tests.unit.router.load.test_worker_state import a_charge, a_worker


def decodes(worker: WorkerState, *names: str) -> None:
    for name in names:
        charge = a_charge(name)
        worker.expect(charge)
        worker.join(charge, 1.0)


def test_copy_is_what_the_worker_is_once_the_requests_have_left() -> None:
    worker = a_worker("d0")
    decodes(worker, "stays", "leaves")
    leaving = worker.charges[RequestId("leaves")]
    left = without(worker, [leaving], PathBias(), 3.0)
    left.validate()
    worker.release(leaving, 3.0)
    assert left.kv_reserved == worker.kv_reserved
    assert left.crowding_s(3.0) == worker.crowding_s(3.0)
    assert left.running.context_tokens(4.0) == worker.running.context_tokens(4.0)
    assert left.running.slack(4.0).finish_s == worker.running.slack(4.0).finish_s


def test_worker_itself_does_not_change() -> None:
    worker = a_worker("d0")
    decodes(worker, "stays", "leaves")
    worker.queue_prefill(a_charge("prompt"), 0.0, 2.0)
    before = (worker.kv_reserved, worker.crowding_s(3.0), worker.running.context_tokens(3.0), repr(worker))
    without(worker, list(worker.running.charges.values()), PathBias(), 3.0)
    worker.validate()
    assert (worker.kv_reserved, worker.crowding_s(3.0), worker.running.context_tokens(3.0), repr(worker)) == before
    assert worker.worker == WorkerId("d0")


def test_copy_has_everything_that_the_worker_has() -> None:
    worker = a_worker("p0")
    decodes(worker, "stays")
    worker.queue_prefill(a_charge("prompt"), 0.0, 2.0)
    worker.expect_outbound(worker.charges[RequestId("prompt")])
    worker.node_class, worker.room, worker.link_free_at = 7, 11, 12.0
    copy = worker.copied(PathBias(), 3.0)
    own = {"audit", "running"}
    """What the copy has of its own: questions to the worker, and the requests that may leave it."""
    names = {name for name, member in vars(WorkerState).items() if inspect.isdatadescriptor(member)} - own
    assert names >= {"node_class", "inbound", "charges"}
    assert {name: getattr(copy, name) for name in names} == {name: getattr(worker, name) for name in names}
