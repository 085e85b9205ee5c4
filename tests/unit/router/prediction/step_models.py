"""Step times of engines: a dense model, and a mixture of experts, whose steps mostly read."""

from router.prediction.step_model import StepModel

MIXTURE = StepModel(
    fixed_s=3e-3,
    token_s=0.0,
    knee_tokens=2871,
    beyond_knee_s=8e-6,
    attended_s=2e-9,
    request_s=1e-5,
    context_s=4e-8,
    experts_s=22e-3,
    unrouted=0.94,
)
MODEL = StepModel(
    fixed_s=12e-3,
    token_s=4e-6,
    knee_tokens=256,
    beyond_knee_s=45e-6,
    attended_s=2e-9,
    request_s=1e-5,
    context_s=5e-8,
)
