"""Prompts for the demo model `baton-script`, which answers as its user has written.

The last message with `[step 1]` is the script. In its k-th turn after that message, the model says the text of step k.
"""

import json

DONE = "All done."
"""What the model says at the end of a script."""


def script(*steps: str) -> str:
    """A prompt that makes the model say `steps`, one in each turn, and then `DONE`."""
    told = [f"[step {number}]{step}" for number, step in enumerate((*steps, DONE), 1)]
    return "".join(("Work as follows. ", *told, "[end]"))


def tool_call(name: str, **arguments: str) -> str:
    """A call of a tool in the form of the tool parser `hermes`."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
