"""The handshake without a network: only who knows the secret comes through, and no bytes of anybody break it."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.network.handshake import (
    ANSWER_BYTES,
    GREETING_BYTES,
    MAGIC,
    NONCE_BYTES,
    PROCESS_BYTES,
    PROOF_BYTES,
    VERSION,
    ConnectorHandshake,
    ListenerHandshake,
    Refused,
)
from tests.expected import present

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
PROCESS = "70" * PROCESS_BYTES
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
cuts = st.lists(st.integers(1, 60), max_size=6)


def a_listener(secret: bytes = SECRET, process: str = PROCESS, nonce: bytes = b"l" * NONCE_BYTES) -> ListenerHandshake:
    return ListenerHandshake(secret, process, nonce)


def a_connector(
    secret: bytes = SECRET, process: str = PROCESS, nonce: bytes = b"c" * NONCE_BYTES
) -> ConnectorHandshake:
    return ConnectorHandshake(secret, process, nonce)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """As a network may deliver it."""
    parts = []
    for size in sizes:
        parts.append(data[:size])
        data = data[size:]
    return [part for part in [*parts, data] if part]


@given(nonces, nonces, st.binary(max_size=50), cuts, cuts, cuts)
def test_two_that_know_the_secret_prove_themselves_however_the_bytes_are_cut(
    ours: bytes, theirs: bytes, rest: bytes, one: list[int], two: list[int], three: list[int]
) -> None:
    listener, connector = a_listener(nonce=ours), a_connector(nonce=theirs)
    answer = b"".join(connector.take(part) for part in pieces(listener.greeting(), one))
    proof = [listener.take(part) for part in pieces(answer, two)]
    assert proof[:-1] == [None] * (len(proof) - 1)
    assert connector.rest is None
    parts = pieces(present(proof[-1]) + rest, three)
    before = b""
    for part in parts:
        if connector.rest is None:
            assert connector.take(part) == b""
        else:
            before += part
    assert present(connector.rest) + before == rest


HEAD = MAGIC + bytes([VERSION])
sayings = st.binary(max_size=200) | st.binary(max_size=200).map(HEAD.__add__)


@given(sayings, cuts)
@example(HEAD + bytes(200), [1] * 150)
@example(HEAD + bytes(ANSWER_BYTES - len(HEAD)), [1] * 150)
def test_listener_refuses_every_stranger_and_keeps_little_of_what_it_says(said: bytes, sizes: list[int]) -> None:
    """A stranger that begins well is refused no later than where an answer to the greeting ends."""
    listener = a_listener()
    num_said = 0
    for data in pieces(said, sizes):
        num_said += len(data)
        try:
            assert listener.take(data) is None
        except Refused:
            return
        assert num_said < ANSWER_BYTES
        assert said[:num_said].startswith(HEAD) or HEAD.startswith(said[:num_said])
        assert len(listener._received) == num_said


@given(st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES), nonces)
def test_listener_refuses_a_proof_that_was_guessed(proof: bytes, nonce: bytes) -> None:
    with pytest.raises(Refused) as refused:
        a_listener().take(MAGIC + bytes([VERSION]) + nonce + proof)
    assert refused.value.reason == "wrong_proof"


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_connector_trusts_no_stranger_that_listens(said: list[bytes]) -> None:
    connector = a_connector()
    try:
        for data in said:
            connector.take(data)
    except Refused:
        pass
    assert connector.rest is None


def answer_to(listener: ListenerHandshake, connector: ConnectorHandshake) -> bytes:
    return connector.take(listener.greeting())


def test_other_secret_is_refused_by_the_listener() -> None:
    listener = a_listener()
    with pytest.raises(Refused) as refused:
        listener.take(answer_to(listener, a_connector(OTHER_SECRET)))
    assert refused.value.reason == "wrong_proof"


def test_listener_that_does_not_know_the_secret_is_refused() -> None:
    connector = a_connector()
    connector.take(a_listener(OTHER_SECRET).greeting())
    with pytest.raises(Refused) as refused:
        connector.take(bytes(PROOF_BYTES))
    assert refused.value.reason == "wrong_proof"


def test_proof_of_one_connection_is_worth_nothing_on_another() -> None:
    answer = answer_to(a_listener(nonce=b"1" * NONCE_BYTES), a_connector())
    with pytest.raises(Refused):
        a_listener(nonce=b"2" * NONCE_BYTES).take(answer)


def test_listener_s_proof_to_one_connector_is_worth_nothing_to_another() -> None:
    """Who has recorded a connection cannot pass for the listener: the connector's nonce is in the proof."""
    first = a_connector(nonce=b"1" * NONCE_BYTES)
    proof = a_listener().take(answer_to(a_listener(), first))
    assert proof is not None
    again = a_connector(nonce=b"2" * NONCE_BYTES)
    again.take(a_listener().greeting())
    with pytest.raises(Refused):
        again.take(proof)


def test_proof_to_one_process_is_worth_nothing_to_another() -> None:
    other = "71" * PROCESS_BYTES
    answer = answer_to(a_listener(process=other), a_connector(process=other))
    with pytest.raises(Refused):
        a_listener().take(answer)


def test_connector_s_own_proof_sent_back_to_it_proves_nothing() -> None:
    connector = a_connector()
    answer = answer_to(a_listener(), connector)
    with pytest.raises(Refused):
        connector.take(answer[-PROOF_BYTES:])


def test_other_process_at_the_address_is_refused_before_anything_is_proved_to_it() -> None:
    with pytest.raises(Refused, match="another process") as refused:
        a_connector().take(a_listener(process="71" * PROCESS_BYTES).greeting())
    assert refused.value.reason == "other_process"


def test_both_sides_say_when_their_versions_differ() -> None:
    newer = MAGIC + bytes([VERSION + 1])
    for side in (a_listener(), a_connector()):
        with pytest.raises(Refused, match=f"version {VERSION + 1} of the protocol, this process version {VERSION}"):
            side.take(newer + bytes(100))


def test_more_than_an_answer_is_refused_though_the_answer_is_right() -> None:
    listener = a_listener()
    with pytest.raises(Refused) as refused:
        listener.take(answer_to(listener, a_connector()) + b"x")
    assert refused.value.reason == "not_the_protocol"


def test_secret_is_in_nothing_that_is_sent() -> None:
    listener, connector = a_listener(), a_connector()
    answer = answer_to(listener, connector)
    proof = listener.take(answer)
    assert proof is not None
    assert (len(listener.greeting()), len(answer)) == (GREETING_BYTES, ANSWER_BYTES)
    assert SECRET not in listener.greeting() + answer + proof
