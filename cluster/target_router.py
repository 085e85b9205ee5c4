"""A Serve request router that sends a call to the one replica that our Scheduler chose.

The caller names the replica by `handle.options(session_id=<worker id>)`. A call without one goes to any replica.
Where the named replica is gone, the call fails at once with WorkerUnreachable instead of waiting for a replacement,
so that the session can place the request anew. Health checks, draining, rolling updates and scaling of Serve stay in
force.
"""

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cluster.errors import WorkerUnreachable


class TargetRouter(RequestRouter):
    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is None or not (target := pending_request.metadata.session_id):
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        chosen = [r for r in candidate_replicas if r.replica_id.unique_id == target]
        if chosen:
            return [chosen]
        _fail(pending_request, target)
        return [candidate_replicas]

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._fail_calls_without_target()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._fail_calls_without_target()

    def _fail_calls_without_target(self) -> None:
        """With no replica left, Serve's routing waits for one and `choose_replicas` is not asked."""
        present = {replica_id.unique_id for replica_id in self.curr_replicas}
        for pending_request in list(self._pending_requests_by_id.values()):
            target = pending_request.metadata.session_id
            if target and target not in present:
                _fail(pending_request, target)


def _fail(pending_request: PendingRequest, target: str) -> None:
    if not pending_request.future.done():
        pending_request.future.set_exception(WorkerUnreachable(f"worker {target} is gone", target))
