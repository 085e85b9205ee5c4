"""The options of `baton load`, and what they mean."""

import argparse
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cluster.config.environment import OPENAI_KEY_VARIABLE
from cluster.load.client.endpoint import Api, Endpoint, checked_headers
from cluster.load.report.conditions import FIGURES, parse_condition
from cluster.load.workload import DEFAULT_REQUESTS, MixSource, Source, TraceSource, fixed_mix
from cluster.messages.ids import SloClass
from cluster.simulation.results.summary import WARM_UP
from cluster.simulation.traffic.named_mixes import MIXES

T = TypeVar("T")

DEFAULT_RATE = 1.0
"""Requests per second of a mix if neither --rate nor --concurrency is given."""
DEFAULT_MIX = "chat"
DEFAULT_URL = "http://127.0.0.1:8000/v1"
ANSWER_TIMEOUT_S = 600.0
"""Default of --timeout: time for one answer, in seconds. Longer waits for answers that never come; shorter fails long
answers of a busy endpoint.
"""
MAX_RATES = 200
"""Rates of a ramp. More are a mistake: each is a load of its own."""
MAX_RETRIES = 100
MAX_KEY_BYTES = 16 * 1024

EPILOG = f"""\
mixes:
{chr(10).join(f"  {name:12} {mix.what}" for name, mix in MIXES.items())}

conditions of --require: {", ".join(FIGURES)}

examples:
  baton load --rate 4 --duration 60
  baton load --mix tools --concurrency 16 --requests 500 --json tools.json --html tools.html
  baton load --trace conversation.jsonl.gz --rows :500 --speed 0.5 --max-prompt 4096
  baton load --tokens 512:128 --rate 1:20:2 --duration 30 --body '{{"ignore_eos": true}}'
  baton load --rate 2 --ttft-ms 500 --tpot-ms 50 --require 'attainment>=0.95' --require 'failed==0'
  baton load compare before.json after.json
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_endpoint(parser)
    _add_workload(parser)
    _add_objectives(parser)
    output = parser.add_argument_group("report")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file, for `compare`")
    output.add_argument("--records", type=Path, metavar="FILE", help="write each request to this file, as JSON lines")
    output.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts to this file")
    output.add_argument(
        "--require",
        type=_typed(parse_condition),
        action="append",
        default=[],
        metavar="CONDITION",
        help="end with 1 if the figures do not meet this, such as 'attainment>=0.95'; may be repeated",
    )


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    endpoint = parser.add_argument_group("endpoint")
    endpoint.add_argument(
        "--url", type=_typed(Endpoint.parse), default=DEFAULT_URL, help="address of the API (default: %(default)s)"
    )
    endpoint.add_argument(
        "--api", type=Api, choices=list(Api), default=Api.CHAT, help="API to call (default: %(default)s)"
    )
    endpoint.add_argument("--model", help="name of the model (default: the only one that the endpoint serves)")
    endpoint.add_argument(
        "--key-file", type=Path, metavar="FILE", help=f"file with the API key (default: ${OPENAI_KEY_VARIABLE})"
    )
    endpoint.add_argument(
        "--body", type=_fields, default={}, metavar="JSON", help="further fields of each body; null removes a field"
    )
    endpoint.add_argument(
        "--header", type=_header, action="append", default=[], metavar="NAME:VALUE", help="header; may be repeated"
    )
    endpoint.add_argument(
        "--timeout",
        type=_above(0.0),
        default=ANSWER_TIMEOUT_S,
        metavar="S",
        help="seconds for each answer (default: %(default)g)",
    )
    endpoint.add_argument(
        "--retry",
        type=_whole(0, MAX_RETRIES),
        default=0,
        metavar="N",
        help="tries after a refusal (429, 503), each after its Retry-After (default: %(default)s)",
    )
    endpoint.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="tokenizer.json, or its folder, of the model (default: words are measured with short requests)",
    )


def _add_workload(parser: argparse.ArgumentParser) -> None:
    workload = parser.add_argument_group("workload")
    source = workload.add_mutually_exclusive_group()
    source.add_argument("--mix", choices=MIXES, metavar="NAME", help=f"synthetic workload (default: {DEFAULT_MIX})")
    source.add_argument("--trace", type=Path, metavar="FILE", help="Mooncake JSON lines or Azure CSV, plain or gzipped")
    source.add_argument("--tokens", type=_lengths, metavar="PROMPT:OUTPUT", help="requests of one length")
    workload.add_argument(
        "--rows", type=_slice, metavar="A:B", default=slice(None), help="rows of the trace (default: all)"
    )
    workload.add_argument(
        "--speed", type=_above(0.0), default=1.0, metavar="X", help="factor on the trace's own times (default: 1)"
    )
    loop = workload.add_mutually_exclusive_group()
    loop.add_argument(
        "--rate",
        type=_rates,
        default=[],
        metavar="R|A:B:STEP",
        help="open loop: requests per second, or a ramp, which ends with a search for the highest rate that attains "
        f"--target (default: the trace's own times, {DEFAULT_RATE:g} of a mix)",
    )
    loop.add_argument("--concurrency", type=_whole(1, 4096), metavar="N", help="closed loop: requests open at any time")
    workload.add_argument(
        "--cv",
        type=_above(0.0, or_equal=True),
        help="coefficient of variation of the gaps between arrivals: 1 is Poisson, 0 constant, more are bursts "
        "(default: the mix's own)",
    )
    workload.add_argument(
        "--requests",
        type=_whole(1, 10_000_000),
        metavar="N",
        help=f"number of requests, for each rate of a ramp (default: the trace's own, {DEFAULT_REQUESTS} of a mix)",
    )
    workload.add_argument(
        "--duration", type=_above(0.0), metavar="S", help="seconds in which requests are sent, for each rate of a ramp"
    )
    workload.add_argument(
        "--warm-up",
        type=_share,
        default=WARM_UP,
        metavar="SHARE",
        help="share of the requests, first in order, that no figure has (default: %(default)s)",
    )
    workload.add_argument("--max-prompt", type=_whole(1, 10_000_000), metavar="TOKENS", help="cut prompts to this")
    workload.add_argument("--max-output", type=_whole(1, 10_000_000), metavar="TOKENS", help="cut answers to this")
    workload.add_argument(
        "--seed", type=int, default=0, help="of all random numbers: the same seed sends the same requests (default: 0)"
    )


def _add_objectives(parser: argparse.ArgumentParser) -> None:
    slo = parser.add_argument_group("objectives")
    slo.add_argument("--ttft-ms", type=_above(0.0), metavar="MS", help="TTFT objective (default: that of the class)")
    slo.add_argument("--tpot-ms", type=_above(0.0), metavar="MS", help="TPOT objective (default: that of the class)")
    slo.add_argument(
        "--slo-class",
        type=SloClass,
        choices=list(SloClass),
        help="SLO class of all requests, sent as service_tier (default: that of the mix, mostly standard)",
    )
    slo.add_argument(
        "--target",
        type=_share,
        default=0.9,
        help="share of requests that must meet their objectives at the highest rate of a ramp (default: %(default)s)",
    )


def source_of(arguments: argparse.Namespace) -> Source:
    if arguments.trace is not None:
        return TraceSource(arguments.trace, arguments.rows)
    if arguments.tokens is not None:
        prompt, output = arguments.tokens
        return MixSource(f"{prompt} prompt and {output} output tokens", fixed_mix(prompt, output), arguments.cv)
    name = arguments.mix or DEFAULT_MIX
    return MixSource(f"mix {name}", MIXES[name], arguments.cv)


def workload_name(arguments: argparse.Namespace, source: Source) -> str:
    """What reports call the workload: two loads of one name, rate and seed send the same requests."""
    rows = arguments.rows
    further = {
        "rows": f"{rows.start or 0}:{'' if rows.stop is None else rows.stop}" if rows != slice(None) else None,
        "speed": arguments.speed if arguments.speed != 1 else None,
        "gaps of CV": arguments.cv,
        "prompts up to": arguments.max_prompt,
        "answers up to": arguments.max_output,
        "fields": json.dumps(arguments.body) if arguments.body else None,
    }
    return ", ".join([source.name, *(f"{name} {value}" for name, value in further.items() if value is not None)])


def headers_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The headers of each request, with the key.

    Raises:
        ValueError: the file with the key has none.
        OSError: it cannot be read.
    """
    headers: dict[str, str] = {}
    key = os.environ.get(OPENAI_KEY_VARIABLE, "")
    if arguments.key_file is not None:
        with arguments.key_file.open("rb") as file:
            key = file.read(MAX_KEY_BYTES).decode(errors="replace").strip()
        if not key:
            raise ValueError(f"{arguments.key_file} has no key")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return checked_headers(headers | dict(arguments.header))


def _typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser for argparse, which shows the message of the error."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed


def _above(bound: float, *, or_equal: bool = False) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        value = float(text)
        if not (bound < value < math.inf or (or_equal and value == bound)):
            raise argparse.ArgumentTypeError(f"{text} is not above {bound:g}")
        return value

    return parsed


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
        return value

    return parsed


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share from 0 to below 1")
    return value


def _rates(text: str) -> list[float]:
    """`4`, or `1:20:2` for 1, 3, 5 and so on up to 20."""
    parts = [_above(0.0)(part) for part in text.split(":")]
    if len(parts) == 1:
        return parts
    if len(parts) != 3 or parts[1] < parts[0]:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate, such as 4, and no ramp, such as 1:20:2")
    first, last, step = parts
    number = int((last - first) / step + 1e-9) + 1
    if number > MAX_RATES:
        raise argparse.ArgumentTypeError(f"{text!r} has {number} rates, which is more than {MAX_RATES}")
    return [first + step * index for index in range(number)]


def _lengths(text: str) -> tuple[int, int]:
    prompt, _, output = text.partition(":")
    whole = _whole(1, 10_000_000)
    return whole(prompt), whole(output)


def _slice(text: str) -> slice:
    first, _, last = text.partition(":")
    return slice(int(first) if first else None, int(last) if last else None)


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError("give a JSON object")
    return fields


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    header = (name.strip(), value.strip())
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} has no colon")
    _typed(_checked_header)(text)
    return header


def _checked_header(text: str) -> dict[str, str]:
    name, _, value = text.partition(":")
    return checked_headers({name.strip(): value.strip()})
