"""The JSON of a request body, decoded within the bounds of api/wire/limits/."""

from typing import Any

import msgspec

from api.wire.limits.bounds import check_bounds
from api.wire.limits.depth import check_depths
from cluster.errors import InvalidRequest


def decoded(text: bytes) -> Any:
    """The JSON value of a text that `check_structure` (api/wire/limits/structure.py) has admitted.

    Raises InvalidRequest for a text that is not JSON, and for a value that is nested too deeply or passes a bound.
    """
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}", None, "invalid_json") from error
    check_depths(body)
    check_bounds(body)
    return body
