"""`python -m tests.yielding idle COMMAND …`: a command that gets the time which nothing else on this machine wants.
`python -m tests.yielding low COMMAND …`: a tenth of what others get, where these want all.

The kernel shares cores among sessions (/proc/PID/autogroup) before it looks at priorities inside of one. So the command
gets a session of its own.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

NICENESS = {"idle": 19, "low": 10}


def main() -> int:
    priority, *command = sys.argv[1:]
    running = subprocess.Popen(command, start_new_session=True, preexec_fn=partial(_yield, priority))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: running.send_signal(number))
    return running.wait()


def _yield(priority: str) -> None:
    if priority == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(NICENESS[priority])
    with suppress(OSError):  # a kernel without autogroups
        Path("/proc/self/autogroup").write_text(str(NICENESS[priority]))


if __name__ == "__main__":
    sys.exit(main())
