"""What a command of the command line asks a running service."""

import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TypeVar

import msgspec

R = TypeVar("R")
PROBE_TIMEOUT_S = 10.0
"""Time in which a service must answer `baton probe` or `baton cells`, in seconds. Then the command ends with 1. Longer
delays the error of a service that hangs; shorter fails on a busy one.
"""
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs without the proxies of the environment. The service is on this machine."""


def ask(service: str, path: str, answer: type[R]) -> tuple[R, bytes] | None:
    """The answer of the service at an URL, and its text. Prints what is wrong and returns None if there is none."""
    url = f"{service.rstrip('/')}{path}"
    try:
        with DIRECT.open(url, timeout=PROBE_TIMEOUT_S) as response:
            body: bytes = response.read()
        return msgspec.json.decode(body, type=answer), body
    except urllib.error.HTTPError as error:
        wrong = f"{url} answers {error.code} {error.reason}"
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        wrong = f"no service answers at {service} ({cause}); `baton serve` starts one"
    except ValueError as error:  # the URL is invalid, or the answer is not Baton's
        wrong = f"{url} is not a Baton service: {error}"
    print(f"baton: {wrong}", file=sys.stderr)
    return None
