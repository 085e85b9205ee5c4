from cluster.messages.ids import WorkerId
from router.prefixes.worker_bits import WorkerBits

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def test_sets_of_workers() -> None:
    bits = WorkerBits()
    a, b = bits.of(A), bits.of(B)
    assert bits.of(A) == a
    assert [set(bits.workers_of(mask)) for mask in (0, a, b, a | b)] == [set(), {A}, {B}, {A, B}]


def test_bit_of_a_worker_that_is_gone_is_another_workers_once_it_is_released() -> None:
    bits = WorkerBits()
    a = bits.of(A)
    assert bits.retire(A) == a
    assert bits.retire(A) is None
    assert bits.of(B) != a
    assert bits.workers_of(a) == ()
    bits.release(a)
    assert bits.of(C) == a
    assert bits.workers_of(a) == (C,)
    bits.validate([])
