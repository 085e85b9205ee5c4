"""The environment variables that an operator may set for every process of Baton."""

SECRET_VARIABLE = "BATON_CLUSTER_SECRET"
"""The secret of the application (cluster/network/secret.py)."""
MASTER_KEY_VARIABLE = "BATON_MASTER_KEY"
"""The key that seals the keys of tenants (api/state/encryption/master_keys.py)."""
DATABASE_URL_VARIABLE = "BATON_DATABASE_URL"
REDIS_URL_VARIABLE = "BATON_REDIS_URL"
