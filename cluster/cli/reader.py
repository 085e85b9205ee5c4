"""Who reads what a command prints may leave before its end, as `head` does. That is no error of the command."""

import argparse
import os
import sys

READER_HAS_LEFT = 141
"""Status of a command whose output is not read to its end: that of a program which SIGPIPE has ended, as shells give
it.
"""


def run_for_reader(arguments: argparse.Namespace) -> int:
    """Run the command that was parsed. Returns its status."""
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python writes what is left once more as it ends: into nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_HAS_LEFT
    return status
