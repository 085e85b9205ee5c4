from hypothesis import settings

settings.register_profile("unit", deadline=None, max_examples=60, stateful_step_count=25, database=None)
settings.load_profile("unit")
