"""Where answers deviate from OpenAI's document with good reason. A waiver that nothing uses fails the tests
(tests/component/api/state/test_document.py).
"""

import re
from typing import NamedTuple


class Waiver(NamedTuple):
    line: str
    """A pattern of the line that would report the deviation."""
    why: str

    def covers(self, line: str) -> bool:
        return re.fullmatch(self.line, line) is not None


WAIVERS = (
    Waiver(
        r".*: (ConversationItemList|ResponseItemList|ChatCompletionList) /(first|last)_id: null is not of type .*",
        "An empty page has neither. OpenAI's service says null.",
    ),
    Waiver(
        r".* /v1/responses.*: Response\w* (/response)?/(usage|user): null is not of type .*",
        "So it is in the document's own examples.",
    ),
    Waiver(
        r".* text/event-stream: CreateChatCompletionStreamResponse /choices/\d+/logprobs: \"refusal\" is a required .*",
        "vLLM's chunks leave it out. Adding it would cost every token, and the official client does not need it.",
    ),
    Waiver(
        r".* text/event-stream: CreateCompletionResponse /choices/\d+/finish_reason: null is not .*",
        "The document has one schema for the whole and for its chunks, of which only the last one has a reason.",
    ),
    Waiver(
        r".* /v1/completions .*: CreateCompletionResponse /choices/\d+/logprobs/(token|top)_logprobs/0: null is not .*",
        "With `echo`, nothing comes before the first token of the prompt. OpenAI's service says null.",
    ),
    Waiver(
        r".*/messages .*: ChatCompletionMessageList /data/\d+/role: \"\w+\" is not one of \"assistant\"",
        "The document's own example lists a user's message.",
    ),
    Waiver(
        r".* /v1/messages.*: anthropic\.ErrorResponse /error/details: Anthropic's model has no such field",
        "They have the code of the error, which tells more than Anthropic's types do.",
    ),
)
