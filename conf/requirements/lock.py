"""Write the pinned lock file of a flavour from the requirements in pyproject.toml. `make lock` runs this script.

pip resolves the requirements without installing them. Packages that the flavour must not install are left out, and the
rest is pinned. The Makefile installs a lock with --no-deps, so that no other package is installed.
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
    # The Makefile installs torch first, from the CPU index. The registry's torchvision, torchaudio and torchcodec are
    # CUDA builds that break `import transformers` with a CPU torch, and its triton has no CPU backend.
    "cpu": {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "nixl-cu12"},
    "gpu": set(),
}
"""Packages that are not pinned, by flavour."""

ENVIRONMENT = {
    "cpu": {},
    # This machine's pip may be configured to find a CPU build of torch, which must not be in the GPU lock.
    "gpu": {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""},
}
"""Environment variables of pip, by flavour."""


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
