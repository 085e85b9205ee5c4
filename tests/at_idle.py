"""`python -m tests.at_idle COMMAND …`: a command that gets the time which nothing else on this machine wants.

The kernel shares cores among sessions (/proc/PID/autogroup) before it looks at priorities inside of one. So the command
gets a session of its own, of the least weight.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

LEAST_WEIGHT = "19"


def main() -> int:
    running = subprocess.Popen(sys.argv[1:], start_new_session=True, preexec_fn=_yield_to_all)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: running.send_signal(number))
    return running.wait()


def _yield_to_all() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # a kernel without autogroups
        Path("/proc/self/autogroup").write_text(LEAST_WEIGHT)


if __name__ == "__main__":
    sys.exit(main())
