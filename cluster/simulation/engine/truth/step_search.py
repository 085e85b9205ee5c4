"""The number of steps that fit into a time, for step times whose run of decode steps has no closed inverse. Pure."""

from cluster.simulation.engine.engine_setting import StepTimes


def most_steps_within(times: StepTimes, num_decoding: int, context_tokens: int, seconds: float) -> int:
    """The most steps for which `decode_run_s` is at most `seconds`. No step of the run may be shorter than its first
    one.
    """
    fits, exceeds = 0, int(seconds / times.decode_run_s(num_decoding, context_tokens, 1)) + 2
    while exceeds - fits > 1:
        steps = (fits + exceeds) // 2
        if times.decode_run_s(num_decoding, context_tokens, steps) <= seconds:
            fits = steps
        else:
            exceeds = steps
    return fits
