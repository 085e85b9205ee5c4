"""What a command of the command line asks the admin port of a running service."""

import argparse
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from api.identity.admin.admin_key import ADMIN_KEY_FILE, known_admin_key
from cluster.cli.conf_option import add_conf_option, config_of
from cluster.cli.operate.visible import visible
from cluster.config.application import AppConfig
from cluster.config.environment import ADMIN_KEY_VARIABLE
from cluster.config.network import ALL_INTERFACES, LOOPBACK, is_loopback
from cluster.http_answer import answer_of
from cluster.repository import REPO_ROOT
from cluster.unreadable import UNREADABLE

R = TypeVar("R")
PROBE_TIMEOUT_S = 10.0
"""Time in which the whole answer of a service to a command such as `baton probe` must come, in seconds. Then the
command ends with 1. Longer delays the error of a service that hangs; shorter fails on a busy one.
"""
MOST_ANSWER_BYTES = 256 << 20
"""Most bytes of an answer that are read. The page of metrics of a thousand replicas has some 100 MB. Fewer fails in
large clusters; more lets whatever listens there fill the memory.
"""
MOST_REFUSAL_BYTES = 64 << 10
"""Most bytes of an error that are read. Its message has 2,000 characters at most (api/wire/errors.py)."""
_HINTS = {
    401: ": the admin key is not that of this service",
    404: ": is this its admin port (admin.port of the config)?",
}
"""What an operator should look at, by the status of an answer."""


class AdminPort(NamedTuple):
    url: str
    key: str | None
    """None if none is required."""


def add_service_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", help="address of the admin port (default: that of the config, http://127.0.0.1:8001 if it names none)"
    )
    add_conf_option(parser)


def ask(
    arguments: argparse.Namespace,
    path: str,
    answer: type[R],
    body: object = None,
    *,
    is_quiet: bool = False,
    explained: Mapping[str, str] | None = None,
) -> tuple[R, bytes] | None:
    """The answer of the service that the options name, and its text. With a `body`, that is posted. Prints what is
    wrong and returns None if there is no answer; `is_quiet`: prints nothing. `explained`: what is wrong, by the code of
    an error of the service.
    """
    return _exchange(
        arguments,
        path,
        lambda text: msgspec.json.decode(text.decode(), type=answer),
        body,
        is_quiet=is_quiet,
        explained=explained,
    )


def ask_text(arguments: argparse.Namespace, path: str) -> str | None:
    """As `ask`, for an answer that is a text."""
    answer = _exchange(arguments, path, lambda text: text.decode())
    return None if answer is None else answer[0]


def _exchange(
    arguments: argparse.Namespace,
    path: str,
    read: Callable[[bytes], R],
    body: object = None,
    *,
    is_quiet: bool = False,
    explained: Mapping[str, str] | None = None,
) -> tuple[R, bytes] | None:
    try:
        port = _admin_port(arguments)
    except (OSError, ValueError, LookupError, yaml.YAMLError) as error:
        _complain(f"{error}", is_quiet=is_quiet)
        return None
    url = f"{port.url}{path}"
    try:
        request = urllib.request.Request(url)
        if port.key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {port.key}")
        if body is not None:
            request.data = msgspec.json.encode(body)
            request.add_header("Content-Type", "application/json")
        text = answer_of(request, PROBE_TIMEOUT_S, MOST_ANSWER_BYTES)
        return read(text), text
    except urllib.error.HTTPError as error:
        wrong = _refusal(url, error, said=body is not None, explained=explained or {})
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        wrong = f"no service answers at {port.url} ({cause}); `baton serve` starts one"
    except (ValueError, *UNREADABLE) as error:  # the URL is invalid, or the answer is not Baton's
        wrong = f"{url} is not a Baton service: {error}"
    _complain(visible(wrong), is_quiet=is_quiet)
    return None


def _complain(wrong: str, *, is_quiet: bool) -> None:
    """What is wrong with a config may have several lines. What a service says has one."""
    if not is_quiet:
        print("\n  ".join(visible(line) for line in f"baton: {wrong}".split("\n")), file=sys.stderr)


def _refusal(url: str, error: urllib.error.HTTPError, *, said: bool, explained: Mapping[str, str]) -> str:
    """What a user is told. `said`: whether the service was told to change something, so that its reason counts."""
    hint = _HINTS.get(error.code, "")
    try:
        refused = msgspec.json.decode(error.read(MOST_REFUSAL_BYTES), type=_ErrorBody).error
    except UNREADABLE:
        refused = _ErrorDetail("")
    if (known := explained.get(refused.code or "")) is not None:
        return known
    if said and refused.message and refused.code != "unknown_url" and error.code != HTTPStatus.UNAUTHORIZED:
        return refused.message
    return f"{url} answers {error.code} {error.reason}{hint}"


class _ErrorDetail(msgspec.Struct):
    message: str
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    """The body of an error (api/wire/errors.py)."""

    error: _ErrorDetail


def about_admin_port(config: AppConfig) -> str:
    """What a user is told about the admin port when the service is ready, in one line."""
    if not config.admin.key_required:
        key = "without a key"
    elif os.environ.get(ADMIN_KEY_VARIABLE):
        key = f"with the key of {ADMIN_KEY_VARIABLE}"
    else:
        key = f"with the key in {REPO_ROOT / config.state.data_dir / ADMIN_KEY_FILE}"
    return f"The page, metrics and the admin API are on {_url_of(config)}, {key}."


def _url_of(config: AppConfig) -> str:
    host = LOOPBACK if config.admin.host == ALL_INTERFACES else config.admin.host
    return f"http://{host}:{config.admin.port}"


def _admin_port(arguments: argparse.Namespace) -> AdminPort:
    """Where to ask, and with which key. The key in a file is sent to this machine alone.

    Raises OSError, ValueError, LookupError or YAMLError if the config or the key cannot be read.
    """
    given: str | None = arguments.url
    if given is not None and (key := os.environ.get(ADMIN_KEY_VARIABLE)):
        return AdminPort(given.rstrip("/"), key)
    config = config_of(arguments)
    url = _url_of(config) if given is None else given.rstrip("/")
    if not config.admin.key_required:
        return AdminPort(url, None)
    if given is not None and not is_loopback(urlsplit(given).hostname or LOOPBACK):
        raise LookupError(
            f"set {ADMIN_KEY_VARIABLE} to the admin key of {given}: the key in a file is sent nowhere else"
        )
    return AdminPort(url, known_admin_key(REPO_ROOT / config.state.data_dir))
