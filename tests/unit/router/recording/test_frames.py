"""Files of the stimulus log that are whole, torn, damaged, foreign, or no logs."""

from io import BytesIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.messages.ids import WorkerId
from cluster.slo import SloConfig
from router.recording.frames import (
    MAGIC,
    MAX_FRAME_BYTES,
    DamagedLog,
    TornLog,
    encoded,
    encoded_header,
    frame,
    read_header,
    read_records,
)
from router.recording.records import FORMAT, Disconnected, IndexSwept, LogGap, LogHeader, Record

HEADER = LogHeader(
    format=FORMAT,
    protocol=3,
    code="c",
    is_compiled=False,
    run="r",
    number=1,
    epoch=2,
    wall_s=1e9,
    loop_s=5.0,
    slo=SloConfig(),
    max_indexed_blocks=1024,
    has_snapshot=False,
    is_exact=True,
)
RECORDS: list[Record] = [Disconnected(WorkerId("p0")), IndexSwept(), LogGap(3)]
WHOLE = encoded_header(HEADER) + encoded(RECORDS) + encoded(RECORDS[:1])


def read(content: bytes) -> tuple[LogHeader, list[Record]]:
    file, records = BytesIO(content), list[Record]()
    header = read_header(file)
    while (more := read_records(file)) is not None:
        records += more
    return header, records


def test_whole_file_is_read_as_it_was_written() -> None:
    assert read(WHOLE) == (HEADER, [*RECORDS, RECORDS[0]])


def test_times_of_the_clock_are_times_of_day() -> None:
    assert HEADER.wall_time(7.5) == 1e9 + 2.5


def test_file_that_ends_anywhere_is_torn_or_shorter() -> None:
    ends_of_frames = (len(encoded_header(HEADER)), len(encoded_header(HEADER) + encoded(RECORDS)))
    for end in range(len(WHOLE)):
        if end in ends_of_frames:
            assert len(read(WHOLE[:end])[1]) < 4
        else:
            with pytest.raises(TornLog, match="ends within"):
                read(WHOLE[:end])


@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_file_with_a_wrong_bit_is_damaged(place: int, bit: int) -> None:
    wrong = bytearray(WHOLE)
    wrong[place] ^= 1 << bit
    with pytest.raises(DamagedLog):
        read(bytes(wrong))


@given(st.binary())
def test_garbage_is_no_log(garbage: bytes) -> None:
    with pytest.raises(DamagedLog):
        read(garbage)
    with pytest.raises(DamagedLog):
        read(MAGIC + garbage)
    with pytest.raises(DamagedLog):
        read(encoded_header(HEADER) + (garbage or b"\0"))
    if garbage != msgspec.msgpack.encode([]):  # no records
        with pytest.raises(DamagedLog):
            read(encoded_header(HEADER) + frame(garbage))


def test_huge_length_is_refused_before_anything_is_read() -> None:
    huge = (MAX_FRAME_BYTES + 1).to_bytes(4, "little") + b"\0\0\0\0"
    with pytest.raises(DamagedLog, match="claims to have"):
        read(encoded_header(HEADER) + huge)


def test_frame_that_no_reader_would_take_is_not_written() -> None:
    with pytest.raises(ValueError, match="may be written"):
        frame(b"\0" * (MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("header", [{"format": FORMAT + 1}, {"format": 99, "whatever": True}])
def test_log_of_another_format_is_named_as_such(header: dict[str, object]) -> None:
    with pytest.raises(DamagedLog, match=f"reads format {FORMAT}"):
        read(MAGIC + frame(msgspec.msgpack.encode(header)))
