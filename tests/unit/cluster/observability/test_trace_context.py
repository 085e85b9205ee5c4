import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.observability.trace_context import context_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
MADE = "req_" + "ab" * 16


def header(version: str = "00", trace: str = TRACE, span: str = SPAN, flags: str = "01", more: str = "") -> bytes:
    return f"{version}-{trace}-{span}-{flags}{more}".encode()


def test_request_of_a_trace_belongs_to_it() -> None:
    context = context_of(header(), b"a=1, b=2", "x", "n")
    assert (context.trace_id, context.parent_id, context.state, context.is_sampled) == (TRACE, SPAN, "a=1,b=2", True)
    assert context.header == f"00-{TRACE}-{context.span_id}-01"
    assert context.span_id != SPAN


@pytest.mark.parametrize("given", [header("cc", more="-later"), header("cc"), header(flags="ff")])
def test_later_versions_and_unknown_flags_are_understood(given: bytes) -> None:
    assert context_of(given, None, "x", "n").trace_id == TRACE


@pytest.mark.parametrize(
    "given",
    [
        b"",
        header("ff"),
        header("00", more="-more"),
        header(trace="0" * 32),
        header(span="0" * 16),
        header(trace=TRACE.upper()),
        header(trace=TRACE[:-1]),
        header(flags="1"),
        header() + b" ",
        header() + b"\n",
        b" " + header(),
        header() + b"," + header(),
        b"\xff" * 55,
        b"0" * 10_000,
    ],
)
def test_what_is_not_valid_is_ignored(given: bytes) -> None:
    context = context_of(given, b"a=1", MADE, "n", is_made=True)
    assert (context.trace_id, context.parent_id, context.state, context.is_sampled) == ("ab" * 16, "", "", False)


@pytest.mark.parametrize(
    "state",
    [b"a", b"a=1,a=2", b"A=1", b"a=\x01", b"a=1=2", b"a=" + b"1" * 600, b",".join(b"k%d=1" % n for n in range(33))],
)
def test_state_that_is_not_valid_is_left_out_and_the_trace_goes_on(state: bytes) -> None:
    context = context_of(header(), state, "x", "n")
    assert (context.trace_id, context.state) == (TRACE, "")


def test_id_that_a_client_uses_twice_does_not_join_two_requests() -> None:
    first, second = context_of(None, None, "mine", "n1"), context_of(None, None, "mine", "n2")
    assert len({first.trace_id, second.trace_id, first.span_id, second.span_id}) == 4
    assert context_of(None, None, "mine", "n1") == first


@pytest.mark.parametrize("chosen", [MADE, "req_" + "0" * 32])
def test_client_cannot_choose_a_trace_id_by_its_request_id(chosen: str) -> None:
    """Neither one that is not valid, nor that of another request."""
    trace_id = context_of(None, None, chosen, "n").trace_id
    assert trace_id != chosen.removeprefix("req_") and int(trace_id, 16)


def test_spans_of_a_request_have_ids_of_their_own() -> None:
    context = context_of(None, None, MADE, "n")
    assert len({context.span_id, *(context.child(number) for number in range(1, 500))}) == 500


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_any_bytes_give_a_valid_context(parent: bytes, state: bytes) -> None:
    context = context_of(parent, state, "x", "n")
    assert len(bytes.fromhex(context.trace_id)) == 16
    assert len(bytes.fromhex(context.span_id)) == 8
    assert context.state.isascii() and "\n" not in context.state
