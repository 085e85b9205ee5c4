"""Which requests belong to the surface of Anthropic's Messages API, by their path. The errors of such a request have
Anthropic's shape, and its answer has the header `request-id`.
"""

PREFIX = "/v1/messages"


def is_of_messages(path: str) -> bool:
    return path == PREFIX or path.startswith(f"{PREFIX}/")
