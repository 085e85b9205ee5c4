from bench.live.memory import SPARE_BYTES, refusal

GIB = 2**30


def test_engines_that_fit_are_not_refused() -> None:
    assert refusal(GIB, 4, 4 * GIB + SPARE_BYTES) is None


def test_refusal_says_what_is_needed_and_what_there_is() -> None:
    message = refusal(3 * GIB // 2, 8, 10 * GIB)
    assert message is not None
    for part in ("8 more engines of 1.5 GiB", "14.0 GiB of memory", "10.0 GiB are available", "--workers"):
        assert part in message
