"""What decoding bytes of others may raise."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec raises UnicodeDecodeError for bytes that are no UTF-8, and RecursionError for what is nested too deep."""
