"""What decoding bytes of others may raise."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no message: bad UTF-8 and deep nesting are no MsgspecError."""
