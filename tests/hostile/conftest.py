"""What a stranger, a careless client or a fault may do to Baton, and what must not come of it.

The folders are named by the part that is attacked. Those beside `live` need no engine; `live` has a running service.
"""

from tests.component.conftest import forgetful, has_titles, postgres, redis, state

__all__ = ["forgetful", "has_titles", "postgres", "redis", "state"]
