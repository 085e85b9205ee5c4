"""Loads vLLM and tells what it is, in a process of its own: `python -m cluster.doctor.facts.engine_probe [CONF]`.

It takes half a minute on a busy machine, and may hang or crash with a broken driver.
"""

import json
import sys
from pathlib import Path

import torch
import vllm
import yaml
from vllm.platforms import current_platform

from cluster.config.application import parse
from cluster.engine_checks.arguments import check_arguments


def refusal(conf: str) -> str:
    """Why vLLM does not take the engine arguments of a Serve config. Empty if it does. What Baton refuses itself is
    told by another check.
    """
    try:
        config = parse(yaml.safe_load(Path(conf).read_text())["applications"][0]["args"])
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return ""
    try:
        check_arguments(config)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    found = {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "device": current_platform.device_type or "",
        "cuda": torch.version.cuda,
        "refusal": refusal(sys.argv[1]) if len(sys.argv) > 1 else "",
    }
    print("baton-doctor:" + json.dumps(found))
