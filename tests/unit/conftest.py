from hypothesis import HealthCheck, settings

settings.register_profile(
    "unit",
    deadline=None,
    max_examples=60,
    stateful_step_count=25,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # it goes by the clock, and these tests get what time others leave
)
settings.load_profile("unit")
