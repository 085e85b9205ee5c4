"""What vLLM's front half raises and logs while it renders requests and parses answers."""

import logging

import pytest

from api.frontend.vllm_errors import serving_error
from tests.component.app_with_fakes import CHAT, FakeCluster, a_client, an_app
from tests.component.fake_engines import FakeEngines

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": %s}}\n</tool_call>'
WINDOW = 8192


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")  # vLLM reads its own field
async def test_answer_that_a_parser_cannot_read_is_logged_once_at_most() -> None:
    engines, handler = FakeEngines(), Kept()
    frontend = await engines.frontend(WINDOW, tool_call_parser="hermes")
    engines.says(CALL % ("1" * 5000))  # more digits than Python reads
    logging.getLogger("vllm").addHandler(handler)
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL], "stream": True}
    try:
        async with a_client(an_app(frontend, FakeCluster())) as client:
            answer = await client.post(CHAT, json=body)
    finally:
        logging.getLogger("vllm").removeHandler(handler)
        await frontend.close()
    assert answer.status_code == 200
    assert len(handler.records) <= 1  # 0 if another test has made the parser log just now


def test_template_that_takes_too_long_is_the_fault_of_its_messages() -> None:
    error = serving_error(TimeoutError("Chat template rendering timed out"))
    assert (error.http_status, error.param) == (400, "messages")
