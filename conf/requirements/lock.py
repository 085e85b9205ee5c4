"""Writes the pinned locks of both install flavours from what pyproject.toml asks for. `make lock` runs it.

pip resolves without installing; what the flavour must not install is left out, and the rest is pinned. The Makefile
installs a lock with --no-deps, so that nothing beyond it comes in.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent

LEFT_OUT = {
    # torch is installed first and alone, from the CPU index. The registry's torchvision, torchaudio and torchcodec
    # are CUDA builds that break `import transformers` beside a CPU torch, and its triton has no CPU backend.
    "cpu": {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "nixl-cu12"},
    "gpu": set(),
}

ENVIRONMENT = {
    "cpu": {},
    # A CPU build of torch that this machine's pip is set up to find must not end up in the GPU lock.
    "gpu": {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flavour", choices=sorted(LEFT_OUT))
    flavour = parser.parse_args().flavour
    pins = resolve(wanted(flavour), ENVIRONMENT[flavour])
    kept = sorted(f"{name}=={version}" for name, version in pins.items() if is_kept(name, flavour))
    target = HERE / f"{flavour}.lock"
    target.write_text("\n".join(kept) + "\n")
    print(f"{target}: {len(kept)} packages")


def wanted(flavour: str) -> list[str]:
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    return [
        *project["dependencies"],
        *project["optional-dependencies"][flavour],
        *project["optional-dependencies"]["dev"],
    ]


def resolve(requirements: list[str], environment: dict[str, str]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", report.name, *requirements]
        subprocess.run([sys.executable, "-m", "pip", *command], check=True, env=os.environ | environment)
        resolved = json.loads(Path(report.name).read_text())["install"]
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in resolved}


def is_kept(name: str, flavour: str) -> bool:
    return name not in LEFT_OUT[flavour] and not (flavour == "cpu" and name.startswith("nvidia-"))


if __name__ == "__main__":
    main()
