"""What a stranger, a careless client or a fault may do to Baton, and what must not come of it.

The folders are named by the part that is attacked. Those beside `live` need no engine; `live` has a running service.
"""

from tests.component.conftest import has_titles, killable_redis, postgres, redis, state

__all__ = ["has_titles", "killable_redis", "postgres", "redis", "state"]
