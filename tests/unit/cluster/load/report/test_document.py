"""A report survives its file, and says what speaks against its figures."""

import msgspec
import pytest

from cluster.load.record import GeneratorFigures, LoadEnding
from cluster.load.report.document import NoReport, highest_rate, parsed_report, warnings
from cluster.load.report.figures import LoadFigures
from cluster.load.report.page import report_page
from cluster.load.report.text import report_text
from tests.unit.cluster.load.report.records import record, refused, report, setup, summed, without_tokens

MANY = [record(number) for number in range(200)]


def test_report_is_read_as_it_was_written() -> None:
    written = report(summed([*MANY, refused(200)]), highest_rate=highest_rate([summed(MANY, rate=2.0)], 0.9))
    assert parsed_report(msgspec.json.encode(written)) == written


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"{" * 10_000, b"\xff", b'{"format": 1}'])
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(NoReport):
        parsed_report(text)


def test_report_of_another_format_or_without_figures_is_refused() -> None:
    with pytest.raises(NoReport, match="format 9"):
        parsed_report(msgspec.json.encode(report(summed(MANY), format=9)))
    with pytest.raises(NoReport, match="format 1, and this version reads"):
        parsed_report(b'{"format": 1, "runs": []}')
    with pytest.raises(NoReport, match="without figures"):
        parsed_report(msgspec.json.encode(report()))


def test_calm_load_has_no_warning() -> None:
    assert warnings(report(summed(MANY))) == []


def test_late_generator_is_told() -> None:
    busy = GeneratorFigures(
        cpu_share=0.95, loop_lag_p99_s=0.05, loop_lag_max_s=0.1, loop_late_share=0.0725, most_open=4096
    )
    lines = "\n".join(warnings(report(summed([record(n, late_s=0.2) for n in range(200)], generator=busy))))
    for part in (
        "sent late: 200 ms",
        "more than 10 ms behind in 7.2% of the time, and 100 ms at most",
        "95% of a core",
        "4096 requests were open",
    ):
        assert part in lines


def test_load_that_is_not_the_one_that_was_planned_is_told() -> None:
    short = [record(n, num_output=3, num_prompt=130) for n in range(200)]
    uncounted = record(200, num_output=None)
    told = report(summed([*short, uncounted]), setup=setup(has_measured_words=False, num_cut=7))
    lines = "\n".join(warnings(told))
    for part in (
        "ignore_eos",
        "30% longer or shorter",
        "1 answers had no `usage`",
        "any length",
        "7 requests were cut",
    ):
        assert part in lines


def test_load_that_goes_on_long_after_its_last_request_is_told() -> None:
    late = [record(number, ended_s=number + 30.0) for number in range(200)]
    assert any("answers went on for 30.0 s" in line for line in warnings(report(summed(late))))


def test_few_requests_are_told() -> None:
    assert any("p99 is little more" in line for line in warnings(report(summed(MANY[:50]))))


def test_text_has_the_figures_that_were_asked_for() -> None:
    text = report_text(report(summed([*MANY, refused(200), without_tokens(201, LoadEnding.CUT, error="cut off")])))
    for part in ("a-model at http", "TTFT", "TPOT", "ITL", "99.0%", "Retry-After was 4 s", "cut off", "generator:"):
        assert part in text


def test_interval_without_an_upper_end_is_told_and_survives_its_file() -> None:
    few = report(summed([record(number, ttft_s=0.1 + number / 1000) for number in range(180)]))
    assert few.shown.ttft_s is not None and few.shown.ttft_s.p99.high is None
    assert parsed_report(msgspec.json.encode(few)) == few
    assert "from 2" in report_text(few)


def test_search_is_told() -> None:
    runs = [summed(MANY, rate=rate) for rate in (1.0, 2.0)]
    text = report_text(report(*runs, highest_rate=highest_rate(runs, 0.9)))
    assert "2 req/s is the highest rate that attained 90% (100.0%, interval 98.2-100.0). It is the highest" in text
    assert "above 90% up to 2 req/s, and below it at no rate that was tried" in text
    assert "No rate that was tried attained 90%." in report_text(
        report(summed([refused()]), highest_rate=highest_rate([summed([refused()])], 0.9))
    )


def at(rate: float, num_good: int) -> LoadFigures:
    """200 requests, of which so many are good."""
    return summed([record(n, ttft_s=0.5 if n * num_good % 200 < num_good else 5.0) for n in range(200)], rate=rate)


def test_search_tells_between_which_rates_chance_has_decided() -> None:
    found = highest_rate([at(1.0, 199), at(4.0, 120), at(2.0, 183), at(3.0, 177)], 0.9)
    assert (found.surely_per_s, found.per_s, found.surely_missed_per_s) == (1.0, 2.0, 4.0)
    assert found.attainment.value == 0.915 and found.is_bounded


def test_page_is_one_file_that_loads_nothing_and_trusts_no_text() -> None:
    evil = "<script>alert(1)</script>"
    records = [*MANY, without_tokens(200, LoadEnding.HTTP_ERROR, status=500, error=evil)]
    page = report_page(report(summed(records), setup=setup(model=evil)), records)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert page.count("<svg") == 6
    assert "http://" not in page.replace("http://127.0.0.1:8000/v1", "").replace("http://www.w3.org/2000/svg", "")


def test_page_of_a_ramp_has_charts_by_rate_and_that_of_nothing_has_none() -> None:
    runs = [summed(MANY, rate=rate) for rate in (1.0, 2.0)]
    assert report_page(report(*runs), MANY).count("<svg") == 8
    assert report_page(report(summed([])), []).count("<svg") == 0
