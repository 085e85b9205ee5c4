"""`baton load`: puts a load on any OpenAI-compatible endpoint, and reports what its clients saw."""

import argparse
import asyncio
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec
import uvloop

from api.wire.slo import TPOT_HEADER, TTFT_HEADER
from cluster.cli.load.options import DEFAULT_RATE, EPILOG, add_options, headers_of, source_of, workload_name
from cluster.cli.operate.visible import visible
from cluster.load.client.client import LoadClient
from cluster.load.experiment import LoadExperiment, LoadPlan
from cluster.load.prompts.calibration import calibrated
from cluster.load.prompts.texts import PromptWriter
from cluster.load.record import MAX_OPEN, LoadRecord
from cluster.load.report.comparison import comparison_text
from cluster.load.report.conditions import unmet
from cluster.load.report.document import LoadReport, LoadSetup, NoReport, PromisedTimes, parsed_report
from cluster.load.report.page import report_page
from cluster.load.report.text import report_text
from cluster.load.sender import RequestForm, Sender
from cluster.load.target import counter_of, served_model
from cluster.load.workload import DEFAULT_REQUESTS, LengthCut
from cluster.messages.ids import SloClass
from cluster.network.open_files import allow_open_files
from cluster.slo import SloConfig

MAX_REPORT_BYTES = 256 * 1024 * 1024
"""Largest report that `compare` reads. More take memory; fewer refuse reports of long ramps."""
SPARE_FILES = 64
"""Open files beside the connections."""
STOPPED = 130
"""Status of a load that the user has ended: that of a program which SIGINT has ended, as shells give it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sends a trace or a synthetic mix to any endpoint with OpenAI's API, in an open loop (--rate) or a "
        "closed one (--concurrency), and reports what its clients saw. Ends with 1 if a condition of --require is not "
        "met or no request finished, with 2 if nothing could be sent, and with 130 after Ctrl-C, which shows the "
        "report of what was done."
    )
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_options(parser)
    parser.set_defaults(run=run)
    further = parser.add_subparsers(metavar="compare", title="reports")
    compare = further.add_parser(
        "compare",
        help="show two reports side by side",
        description="Shows the ratios of two reports that --json has written, with their uncertainty.",
    )
    compare.add_argument("first", type=Path, metavar="A.json")
    compare.add_argument("second", type=Path, metavar="B.json")
    compare.set_defaults(run=_compare)


def run(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        try:
            records = stack.enter_context(arguments.records.open("wb")) if arguments.records else None
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(_Command(arguments, records).run())
        except (OSError, ValueError) as error:
            print(f"baton: {visible(str(error))}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("\nbaton: stopped", file=sys.stderr)
            return STOPPED


class _Command:
    def __init__(self, arguments: argparse.Namespace, records: BinaryIO | None) -> None:
        self._arguments, self._records = arguments, records
        self._source = source_of(arguments)
        self._headers = headers_of(arguments) | _told_objectives(arguments)
        self._slos = _slos(arguments)

    async def run(self) -> int:
        arguments = self._arguments
        allow_open_files(MAX_OPEN + SPARE_FILES)
        client = LoadClient(arguments.url)
        try:
            experiment = await self._prepared(client)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, experiment.stop)
            report = await experiment.run()
        finally:
            client.close()
        _print(report_text(report))
        self._write(report, experiment.shown_records)
        lines = unmet(arguments.require, report.shown)
        for line in lines:
            print(f"baton: {line}", file=sys.stderr)
        if experiment.is_stopped:
            return STOPPED
        return 1 if lines or not report.shown.finished_per_s else 0

    async def _prepared(self, client: LoadClient) -> LoadExperiment:
        """Raises UnusableEndpoint, and ValueError or OSError for options that do not fit."""
        arguments, endpoint = self._arguments, self._arguments.url
        model = await served_model(client, endpoint, self._headers, arguments.model)
        count = counter_of(client, endpoint, arguments.api, model.id, self._headers, arguments.body)
        wording = await calibrated(count, arguments.tokenizer)
        form = RequestForm(
            api=arguments.api,
            model=model.id,
            fields=arguments.body,
            headers=self._headers,
            slo_class=arguments.slo_class,
            timeout_s=arguments.timeout,
            max_retries=arguments.retry,
        )
        setup = LoadSetup(
            url=endpoint.url,
            api=arguments.api,
            model=model.id,
            workload=workload_name(arguments, self._source),
            loop="open" if arguments.concurrency is None else "closed",
            num_users=arguments.concurrency,
            seed=arguments.seed,
            warm_up=arguments.warm_up,
            slos=self._slos,
            has_measured_words=wording.is_measured,
            max_retries=arguments.retry,
        )
        return LoadExperiment(
            self._plan(),
            setup,
            self._source,
            LengthCut(arguments.max_prompt, arguments.max_output, model.max_model_len),
            lambda salt: Sender(client, endpoint, form, PromptWriter(wording, salt)),
            self._note,
        )

    def _plan(self) -> LoadPlan:
        arguments = self._arguments
        rates = arguments.rate
        if not rates and arguments.concurrency is None and not self._source.has_times:
            rates = [DEFAULT_RATE]
        number = arguments.requests
        if number is None and arguments.duration is None and arguments.concurrency is not None:
            number = DEFAULT_REQUESTS
        return LoadPlan(
            rates=rates,
            num_users=arguments.concurrency,
            speed=arguments.speed,
            number=number,
            duration_s=arguments.duration,
            searches=len(rates) > 1,
            target=arguments.target,
        )

    def _note(self, number: int, record: LoadRecord) -> None:
        if self._records is not None:
            self._records.write(record.line(number, self._slos[record.slo_class].slo))

    def _write(self, report: LoadReport, records: list[LoadRecord]) -> None:
        arguments = self._arguments
        if arguments.json:
            _write(arguments.json, msgspec.json.format(msgspec.json.encode(report)))
        if arguments.html:
            _write(arguments.html, report_page(report, records).encode())


def _told_objectives(arguments: argparse.Namespace) -> dict[str, str]:
    """Baton's headers. Other services know nothing of them."""
    told = {TTFT_HEADER: arguments.ttft_ms, TPOT_HEADER: arguments.tpot_ms}
    return {name: f"{value:g}" for name, value in told.items() if value is not None}


def _slos(arguments: argparse.Namespace) -> dict[SloClass, PromisedTimes]:
    """The objectives that requests are judged by: those of the options, or the defaults of their class."""
    slos = {}
    for slo_class in SloClass if arguments.slo_class is None else [arguments.slo_class]:
        objective = SloConfig().of(slo_class)
        ttft_s = objective.ttft_s if arguments.ttft_ms is None else arguments.ttft_ms / 1e3
        tpot_s = objective.tpot_s if arguments.tpot_ms is None else arguments.tpot_ms / 1e3
        slos[slo_class] = PromisedTimes(ttft_s, tpot_s)
    return slos


def _compare(arguments: argparse.Namespace) -> int:
    reports = []
    for file in (arguments.first, arguments.second):
        try:
            with file.open("rb") as opened:
                reports.append(parsed_report(opened.read(MAX_REPORT_BYTES)))
        except (OSError, NoReport) as error:
            print(f"baton: {file}: {visible(str(error))}", file=sys.stderr)
            return 2
    first, second = reports
    _print(comparison_text(first, second, (arguments.first.name, arguments.second.name)))
    return 0


def _print(text: str) -> None:
    """A report may have names and errors of an endpoint, which must not control the terminal."""
    print("\n".join(visible(line) for line in text.split("\n")))


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    print(f"baton: wrote {file}", file=sys.stderr)
