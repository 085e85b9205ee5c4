"""The queue against a model that sorts all requests whenever it is asked."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cluster.messages.ids import IngressId, RequestId, SloClass
from router.admission.waiting_queue import Waiting, WaitingQueue
from tests.unit.clusters import ask

INGRESSES = [IngressId("one"), IngressId("two")]
NAMES = [RequestId(f"r{number}") for number in range(8)]
SECONDS = st.sampled_from([0.0, 0.01, 0.05, 0.3, 2.0])
"""Few values, so that requests are equal."""


def place_of(waiting: Waiting) -> tuple[int, float]:
    return waiting.request.slo_class.rank, waiting.gives_up_at


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue()
        self.model: dict[RequestId, Waiting] = {}
        """The requests that wait, in the order in which they came."""
        self.now = 1.0

    @initialize(several=st.lists(st.sampled_from(SloClass), max_size=8))
    def some_wait(self, several: list[SloClass]) -> None:
        for name, slo_class in zip(NAMES, several, strict=False):
            self.come(name, slo_class, INGRESSES[0], 0.3)

    def in_order(self) -> list[Waiting]:
        return sorted(self.model.values(), key=place_of)

    @rule(
        name=st.sampled_from(NAMES),
        slo_class=st.sampled_from(SloClass),
        ingress=st.sampled_from(INGRESSES),
        patience_s=SECONDS,
    )
    def come(self, name: RequestId, slo_class: SloClass, ingress: IngressId, patience_s: float) -> None:
        waiting = Waiting(ask(name, 100, slo_class=slo_class), ingress, self.now)
        waiting.gives_up_at = self.now + patience_s
        place = place_of(waiting)
        before = sum(place_of(other) < place for other in self.model.values())
        assert self.queue.num_before(waiting) == before
        self.model.pop(name, None)
        self.model[name] = waiting
        self.queue.add(waiting)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: RequestId) -> None:
        self.model.pop(name, None)
        self.queue.remove(name)

    @rule(ingress=st.sampled_from(INGRESSES), but=st.frozensets(st.sampled_from(NAMES)))
    def ingress_leaves(self, ingress: IngressId, but: frozenset[RequestId]) -> None:
        gone = [name for name, waiting in self.model.items() if waiting.ingress == ingress and name not in but]
        assert self.queue.remove_of(ingress, but) == gone
        for name in gone:
            del self.model[name]

    @rule(seconds=SECONDS, most=st.integers(0, 3), patience_s=SECONDS, is_placed=st.lists(st.booleans()))
    def consider(self, seconds: float, most: int, patience_s: float, is_placed: list[bool]) -> None:
        """As `decide` does: those that are due, in the order of service, and late ones alone after `most` failures.
        Those that are late and have no more patience are answered.
        """
        self.now += seconds
        now, num_failed, answers = self.now, 0, iter(is_placed)
        self.queue.wake(now)
        for waiting in self.in_order():
            if now < waiting.gives_up_at and (num_failed >= most or now < waiting.try_at):
                continue
            assert self.queue.next_due(is_late=num_failed >= most) is waiting
            waiting.gives_up_at = max(waiting.gives_up_at, now + patience_s)
            before = sum(place_of(other) < place_of(waiting) for other in self.model.values())
            assert self.queue.num_before(waiting) == before
            if next(answers, False) or now >= waiting.gives_up_at:
                self.queue.remove(waiting.request.request_id)
                del self.model[waiting.request.request_id]
            else:
                num_failed += 1
                self.queue.look_later(waiting, now)
        assert self.queue.next_due(is_late=num_failed >= most) is None

    @invariant()
    def queue_is_that_of_the_model(self) -> None:
        self.queue.validate()
        assert len(self.queue) == len(self.model)
        assert self.queue.first(100) == self.in_order()
        assert self.queue.first(2) == self.in_order()[:2]
        looks = [min(waiting.try_at, waiting.gives_up_at) for waiting in self.model.values()]
        next_at = self.queue.next_look_at()
        if not looks:
            assert next_at is None
        elif min(looks) > self.now:
            assert next_at == min(looks)
        else:
            assert next_at is not None
            assert next_at <= self.now


TestWaitingQueue = QueueMachine.TestCase
