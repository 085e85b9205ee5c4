"""Answers of workers, made of token ids."""

from cluster.messages.generation import TokenLogprob
from cluster.messages.ids import Pool, WorkerId
from cluster.messages.quality import Answer, AnswerStep
from cluster.messages.views import ClusterView, WorkerView
from tests.unit.factories import a_decode_view, a_prefill_view


def a_step(token: int, shift: float = 0.0) -> AnswerStep:
    """The token is the most likely one of the step; `shift` moves its log-probability, in nats."""
    others = [(token + 1, -2.0), (token + 2, -3.0), (token + 3, -4.0), (token + 4, -5.0)]
    top = [TokenLogprob(token, -0.5 + shift), *(TokenLogprob(*other) for other in others)]
    return AnswerStep(token, top)


def an_answer(*tokens: int, shift: float = 0.0) -> Answer:
    return [a_step(token, shift) for token in tokens]


def a_pool(pool: Pool, num: int, *, num_prefill: int = 0) -> list[WorkerView]:
    """Workers named p0, p1, ... or d0, d1, ... Decode workers have links to `num_prefill` prefill workers."""
    if pool is Pool.PREFILL:
        return [a_prefill_view(f"p{i}") for i in range(num)]
    return [a_decode_view(f"d{i}", connected=" ".join(f"p{j}" for j in range(num_prefill))) for i in range(num)]


def a_cluster(num_prefill: int, num_decode: int) -> ClusterView:
    prefills = a_pool(Pool.PREFILL, num_prefill)
    return ClusterView(workers=[*prefills, *a_pool(Pool.DECODE, num_decode, num_prefill=num_prefill)])


def pools(num_prefill: int, num_decode: int) -> dict[WorkerId, Pool]:
    return {worker.worker: worker.pool for worker in a_cluster(num_prefill, num_decode).workers}
