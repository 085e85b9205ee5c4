"""What decoding bytes of others may raise. Pure."""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Bad UTF-8 and deep nesting are no MsgspecError."""
