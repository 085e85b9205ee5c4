"""A Serve request router that sends a call to the one replica that our Scheduler chose.

The caller names the replica by `handle.options(session_id=<worker id>)`. Where that replica is gone, the call fails
at once with WorkerUnreachable instead of waiting for a replacement, and where it is full, with WorkerBusy, so that
the session can place the request anew. Health checks, draining, rolling updates and scaling of Serve stay in force.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from cluster.errors import WorkerBusy, WorkerUnreachable


class TargetRouter(RequestRouter):
    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """For calls that name no replica: any."""
        return [candidate_replicas]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        # Overridden as a whole: Serve's queue of requests waiting for any replica has no place for a call that has one.
        target = pending_request.metadata.session_id
        if not target:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        for replica_id, replica in self.curr_replicas.items():
            if replica_id.unique_id == target:
                if is_retry:
                    raise WorkerBusy(f"worker {target} takes no more requests", target)
                return replica
        raise WorkerUnreachable(f"worker {target} is gone", target)
