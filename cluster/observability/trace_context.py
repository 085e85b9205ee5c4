"""W3C Trace Context: to which trace a request belongs. Pure.

A context that a client sends is parsed strictly, and ignored if it is not valid, as the standard asks for
(https://www.w3.org/TR/trace-context/). Ids are lower-case hexadecimal.
"""

import hashlib
import re

import msgspec

MAX_STATE_CHARS = 512
"""Characters of a `tracestate` that is passed on, which the standard asks for at least. A longer one is left out. More
makes spans larger; fewer loses the state of long chains of services.
"""
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
_MEMBER = re.compile(rb"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")
_MAX_MEMBERS = 32
_MADE_ID = re.compile(r"req_([0-9a-f]{32})")
_SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a request in a trace."""

    trace_id: str
    """32 digits."""
    span_id: str
    """16 digits: of the request's own span, the parent of all its stages."""
    parent_id: str = ""
    """16 digits: of the client's span. Empty if the trace begins here."""
    state: str = ""
    """The client's `tracestate`."""
    is_sampled: bool = False
    """Whether the client keeps this trace."""

    @property
    def header(self) -> str:
        """The `traceparent` of the request's own span."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"

    def child(self, number: int) -> str:
        """The id of a span of this request, by its number, from 1 on."""
        return _hashed(f"{self.trace_id}{self.span_id}{number}")


def context_of(
    parent: bytes | None, state: bytes | None, request_id: str, nonce: str, *, is_made: bool = False
) -> TraceContext:
    """The context of a request. `parent`, `state`: the client's headers. `request_id`: its `x-request-id`. `is_made`:
    whether that was made here. `nonce`: random, for a request whose id its client has chosen, and may choose again.
    """
    own = _hashed(f"{request_id}{nonce}")
    given = _PARENT.fullmatch(parent) if parent is not None else None
    if given is not None:
        version, trace_id, parent_id, flags, more = given.groups()
        is_known = version != b"ff" and (version != b"00" or more is None)
        if is_known and trace_id.strip(b"0") and parent_id.strip(b"0"):
            return TraceContext(
                trace_id=trace_id.decode(),
                span_id=own,
                parent_id=parent_id.decode(),
                state=_state_of(state),
                is_sampled=bool(int(flags, 16) & _SAMPLED),
            )
    made = _MADE_ID.fullmatch(request_id) if is_made else None
    return TraceContext(trace_id=made[1] if made else _hashed(f"{nonce}{request_id}", 16), span_id=own)


def _state_of(given: bytes | None) -> str:
    """Empty if it is not valid."""
    if given is None or len(given) > MAX_STATE_CHARS:
        return ""
    members = [member.strip(b" \t") for member in given.split(b",")]
    named = [member for member in members if member]
    keys = {member.partition(b"=")[0] for member in named}
    is_valid = len(keys) == len(named) <= _MAX_MEMBERS and all(map(_MEMBER.fullmatch, named))
    return b",".join(named).decode("ascii") if is_valid else ""


def _hashed(text: str, num_bytes: int = 8) -> str:
    return hashlib.blake2b(text.encode(), digest_size=num_bytes).hexdigest()
