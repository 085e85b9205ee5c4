"""A folder of policies and lists, as small as a test needs."""

from pathlib import Path
from typing import Any

LIST = """
category = "violence"
[[entries]]
score = 0.9
terms = ["pipe bomb", "glue soup"]
[[entries]]
score = 0.3
terms = ["knife"]
"""
INJECTIONS = """
category = "prompt-injection"
roles = ["tool"]
[[entries]]
score = 0.9
terms = ["ignore all previous instructions"]
"""
TOPIC = """
disclaimer = "This is no medical advice."
[[entries]]
score = 0.5
terms = ["aspirin"]
[[entries]]
score = 0.5
patterns = ["[0-9]+ ?mg"]
"""
POLICY = """
disclaimers = ["medical"]
[personal_data_in]
card = "mask"
[personal_data_out]
card = "mask"
email = "mask"
"""


def safety_in(folder: Path, policy: str = POLICY, **config: Any) -> dict[str, Any]:
    """The config section of a service whose tenants all have the policy."""
    for name, text in {
        "lists/violence.toml": LIST,
        "lists/injections.toml": INJECTIONS,
        "topics/medical.toml": TOPIC,
        "policies/standard.toml": policy,
        "tenants.toml": 'default = "standard"',
    }.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return {"folder": str(folder), "classifier": None} | config
