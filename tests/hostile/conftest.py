"""What a stranger, a careless client or a fault may do to Baton, and what must not come of it.

The folders are named by the part that is attacked, and none needs an engine. Strangers at a running service are in
tests/real_cluster/hostile.
"""

from tests.component.conftest import has_titles, killable_redis, patience_with_redis, postgres, redis, state

__all__ = ["has_titles", "killable_redis", "patience_with_redis", "postgres", "redis", "state"]
