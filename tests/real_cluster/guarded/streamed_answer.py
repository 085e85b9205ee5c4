"""A stream of a completion, with what has come of it so far."""

from collections.abc import Callable

from openai import Stream
from openai.types import Completion


class StreamedAnswer:
    def __init__(self, stream: Stream[Completion], prompt: str) -> None:
        self._stream = stream
        self.prompt = prompt
        self.id = ""
        self.text = ""
        self.finish_reason: str | None = None

    def read_until(self, is_enough: Callable[[str], object]) -> None:
        """Read until that holds for the text. Raises AssertionError if the stream ends before."""
        while not is_enough(self.text):
            assert self._read_chunk(), f"the stream has ended with {self.finish_reason} after {self.text!r}"

    def read_all(self) -> None:
        while self._read_chunk():
            pass

    def _read_chunk(self) -> bool:
        """Whether there was one."""
        for chunk in self._stream:
            self.id = chunk.id
            for choice in chunk.choices:
                self.text += choice.text
                self.finish_reason = choice.finish_reason or self.finish_reason
            return True
        return False
