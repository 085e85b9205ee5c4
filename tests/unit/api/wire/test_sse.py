from api.wire import sse
from cluster.errors import GenerationFailed, ServingError

TEXT = 'data: {"text":"a"}\n\n'
BROKEN = 'data: {"error":"broken"}\n\n'


def error_in(frame: str) -> ServingError | None:
    return GenerationFailed("worker d0 is gone", "d0") if frame.startswith('data: {"error"') else None


def test_frame_is_passed_on_as_it_is() -> None:
    assert sse.to_wire(TEXT, error_in) == TEXT.encode()


def test_error_is_a_frame_in_openai_s_shape() -> None:
    assert sse.to_wire(BROKEN, error_in) == (
        b'data: {"error":{"message":"worker d0 is gone","type":"server_error","param":null,"code":"worker_failed"}}\n\n'
    )


def test_internal_nulls_are_dropped() -> None:
    assert sse.to_wire('data: {"index":0,"token_ids":null}\n\n', error_in) == b'data: {"index":0}\n\n'


def test_keep_alive_is_a_comment() -> None:
    assert sse.KEEP_ALIVE.startswith(b":")
    assert sse.KEEP_ALIVE.endswith(b"\n\n")


def test_data_frame_is_compact_json() -> None:
    assert sse.data_frame({"a": [1, "é"]}) == 'data: {"a":[1,"é"]}\n\n'
