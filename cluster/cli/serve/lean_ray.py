"""`python -m cluster.cli.serve.lean_ray`: Ray's command `serve`, which starts a part of Ray's dashboard.

The dashboard is what `serve status`, `serve deploy` and `ray list` ask. It has a process for each of its modules, ten
in all, which take memory, and CPU time also without load. Ray's dashboard has an option for its modules, and `serve`
has none that sets it. So the command line of the dashboard is changed as it starts.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ray._private import ray_constants, services
from ray.serve.scripts import cli

MODULES = ("ServeHead", "JobHead", "StateHead")
"""Modules of the dashboard that are started: for `serve status` and `serve deploy`, for the version that these ask for
first, and for `ray list`. More of them take memory and CPU time; with fewer, one of these commands fails.
"""


def lean(start: Callable[..., Any]) -> Callable[..., Any]:
    """`start_ray_process` of Ray, where the dashboard's command line names MODULES."""

    def start_lean(command: Sequence[str], process_type: str, *arguments: Any, **others: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            command = [*command, f"--modules-to-load={','.join(MODULES)}"]
        return start(command, process_type, *arguments, **others)

    return start_lean


if __name__ == "__main__":
    services.start_ray_process = lean(services.start_ray_process)
    sys.exit(cli())
