"""What the drills' client calls an answer: the right text to its last token, and the right usage."""

import json
import socket
import threading

import pytest

from tests.drills.client import ANSWERED, Client
from tests.drills.word_lists import word_list

NUM_TOKENS = 40
WORDS = word_list(5, 60)
RIGHT = WORDS.answer(NUM_TOKENS)


@pytest.mark.parametrize(
    ("text", "usage", "outcome"),
    [
        (RIGHT, NUM_TOKENS, ANSWERED),
        ("", NUM_TOKENS, "0 tokens"),
        (WORDS.answer(NUM_TOKENS - 1), NUM_TOKENS, "39 tokens"),
        (WORDS.answer(NUM_TOKENS + 1), NUM_TOKENS, "41 tokens"),
        (RIGHT[:-1], NUM_TOKENS, "40 tokens"),
        (RIGHT, NUM_TOKENS - 1, "usage: 39 tokens"),
        (WORDS.answer(10) + WORDS.answer(30), NUM_TOKENS, "WRONG ANSWER"),
    ],
)
def test_only_the_whole_right_text_is_an_answer(text: str, usage: int, outcome: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=_say, args=(listening, text, usage))
        serving.start()
        client = Client(listening.getsockname()[1], timeout_s=10.0)
        client.ask("any", WORDS, NUM_TOKENS)
        assert client.wait_for_end(10.0)
        serving.join()
    assert client.outcome == outcome


def _say(listening: socket.socket, text: str, usage: int) -> None:
    connection, _ = listening.accept()
    chunks = [{"choices": [{"text": text}]}, {"choices": [], "usage": {"completion_tokens": usage}}]
    frames = [*(json.dumps(chunk) for chunk in chunks), "[DONE]"]
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        connection.sendall("".join(f"data: {frame}\n\n" for frame in frames).encode())
