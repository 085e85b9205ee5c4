"""The access of a service that requires no credential, and has no accounts."""

from api.identity.access import Access
from api.identity.keys import invalid_key
from api.identity.principal import Principal


async def known_to_nobody(credential: str) -> Principal:
    raise invalid_key("nobody has this credential")


OPEN = Access(known_to_nobody, is_required=False)
