"""For whom a request runs: whose limits it draws on, and who is charged. Pure."""

import msgspec

NO_KEY = "anonymous"
"""Name under which PostgreSQL and Redis hold the data of requests without a credential."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str = NO_KEY
    """The tenant as PostgreSQL and Redis know it: never empty."""
    project: str = ""
    key: str = ""
    """The id of the API key, which the ledger has."""
    key_lineage: str = ""
    """The id of the first key of the rotations that have made this one: the limits of a key are those of all of them.
    """
    end_user: str = ""
    """The tenant's user, as the tenant's client or the issuer of a token names it."""
