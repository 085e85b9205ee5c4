"""A table of step times that a test can compute by head."""

from cluster.simulation.engine.truth.step_table import StepTable

TABLE = StepTable(
    prompt_s=((100, 0.020), (1000, 0.050), (2000, 0.100)),
    decode_s=((1, 0.010), (8, 0.010), (32, 0.020)),
    attended_s=1e-9,
    context_s=1e-7,
)
