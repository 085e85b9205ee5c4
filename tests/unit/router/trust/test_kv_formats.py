from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import Pool, WorkerId
from cluster.messages.kv_format import KvFormat
from router.trust.kv_formats import KvFormats, unequal


def a_format(
    dtype: str = "bfloat16", *, num_ranks: int = 1, num_kv_heads: int = 8, is_replicated: bool = False
) -> KvFormat:
    return KvFormat(
        digest=f"digest of {dtype}",
        settings=(("model", "org/model"), ("dtype", dtype)),
        num_ranks=num_ranks,
        num_kv_heads=num_kv_heads,
        is_replicated=is_replicated,
    )


def test_difference_is_named_with_both_values() -> None:
    assert unequal(a_format(), a_format()) is None
    assert unequal(a_format(), a_format("float32")) == (
        "dtype is bfloat16 in the prefill pool and float32 in the decode pool"
    )


def test_difference_that_no_setting_shows_is_one_all_the_same() -> None:
    other = KvFormat(digest="another", settings=a_format().settings)
    assert unequal(a_format(), other) == "the digests that vLLM compares differ between the pools"


def test_ranks_of_one_pool_must_divide_those_of_the_other() -> None:
    assert unequal(a_format(num_ranks=2), a_format(num_ranks=4)) is None
    assert unequal(a_format(num_ranks=4), a_format(num_ranks=2)) is None
    why = unequal(a_format(num_ranks=2), a_format(num_ranks=3))
    assert why is not None and "tensor_parallel_size is 2 in the prefill pool and 3 in the decode pool" in why


def test_larger_prefill_pool_has_no_more_ranks_than_the_model_has_heads() -> None:
    """Otherwise ranks have copies of heads, and vLLM reads from one rank only where all ranks have everything."""
    why = unequal(a_format(num_ranks=4, num_kv_heads=2), a_format(num_ranks=2, num_kv_heads=2))
    assert why is not None and "2 key-value heads" in why
    assert unequal(a_format(num_ranks=2, num_kv_heads=2), a_format(num_ranks=4, num_kv_heads=2)) is None
    replicated = [a_format(num_ranks=num, num_kv_heads=1, is_replicated=True) for num in (4, 2)]
    assert unequal(*replicated) is None


def test_pools_without_one_pair_that_fits_are_a_mismatch_until_one_does() -> None:
    formats = KvFormats()
    formats.add(WorkerId("p0"), Pool.PREFILL, a_format())
    assert formats.mismatch is None
    formats.add(WorkerId("d0"), Pool.DECODE, a_format("float32"))
    assert formats.mismatch is not None and "float32" in formats.mismatch
    formats.add(WorkerId("d1"), Pool.DECODE, a_format())
    assert formats.mismatch is None
    formats.remove(WorkerId("d1"))
    assert formats.mismatch is not None
    formats.remove(WorkerId("d0"))
    assert formats.mismatch is None


def test_pair_of_formats_is_told_of_once_however_many_workers_have_them() -> None:
    formats = KvFormats()
    for number in range(3):
        formats.add(WorkerId(f"p{number}"), Pool.PREFILL, a_format())
        formats.add(WorkerId(f"d{number}"), Pool.DECODE, a_format("float32"))
    assert len(formats.take_new()) == 1
    formats.remove(WorkerId("d0"))
    formats.remove(WorkerId("unknown"))
    formats.add(WorkerId("d9"), Pool.DECODE, a_format("float32"))
    assert formats.take_new() == []


WORKERS = st.dictionaries(st.integers(0, 9), st.tuples(st.sampled_from(Pool), st.sampled_from(["a", "b", "c"])))


@given(WORKERS, st.sets(st.integers(0, 9)))
def test_mismatch_is_that_of_the_workers_that_live(started: dict[int, tuple[Pool, str]], gone: set[int]) -> None:
    formats = KvFormats()
    for number, (pool, dtype) in started.items():
        formats.add(WorkerId(str(number)), pool, a_format(dtype))
    for number in gone:
        formats.remove(WorkerId(str(number)))
    live = [one for number, one in started.items() if number not in gone]
    of_pool = {pool: {dtype for its, dtype in live if its is pool} for pool in Pool}
    prefill, decode = of_pool[Pool.PREFILL], of_pool[Pool.DECODE]
    assert (formats.mismatch is not None) == bool(prefill and decode and not prefill & decode)
