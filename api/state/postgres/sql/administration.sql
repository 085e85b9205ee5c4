-- name: alone
-- Waits until every transaction of the tenant that has begun is over, and keeps new ones waiting
SELECT set_config('app.tenant_id', %(tenant)s, true),
  pg_advisory_xact_lock(hashtextextended('baton tenant ' || %(tenant)s, 0))

-- name: tenant
SELECT id FROM tenants WHERE id = %(tenant)s

-- name: tenants
SELECT id FROM tenants ORDER BY id

-- name: begin_erasure
UPDATE tenants SET erasing_since = coalesce(erasing_since, now()), erased_at = NULL
WHERE id = %(tenant)s
RETURNING id

-- name: end_erasure
UPDATE tenants SET erased_at = now() WHERE id = %(tenant)s

-- name: destroy_keys
UPDATE tenant_keys SET wrapped_key = NULL, destroyed_at = now()
WHERE tenant_id = %(tenant)s AND wrapped_key IS NOT NULL AND (%(before)s::int IS NULL OR version < %(before)s)
RETURNING version

-- name: wrapped_keys
SELECT tenant_id, version, wrapped_key FROM tenant_keys
WHERE wrapped_key IS NOT NULL
ORDER BY tenant_id, version

-- name: rewrap
UPDATE tenant_keys SET wrapped_key = %(wrapped_key)s, master_key = %(master_key)s
WHERE tenant_id = %(tenant)s AND version = %(version)s AND wrapped_key = %(before)s

-- name: forget_words
-- The words are hashed with the key of their item, so a new key needs new hashes
UPDATE item_words SET language = '', words = NULL WHERE tenant_id = %(tenant)s AND item_id = ANY (%(items)s)

-- name: forget_end_users
-- Of a tenant that is being erased. Its rows of the ledger stay
UPDATE usage_ledger SET end_user = ''
WHERE tenant_id = %(tenant)s AND (started_at, id, attempt) IN (
  SELECT started_at, id, attempt FROM usage_ledger WHERE tenant_id = %(tenant)s AND end_user <> '' LIMIT %(limit)s)

-- name: forget_end_users_of_sums
DELETE FROM usage_day_sums WHERE tenant_id = %(tenant)s AND kind = 'end_user' AND (scope_id, day) IN (
  SELECT scope_id, day FROM usage_day_sums WHERE tenant_id = %(tenant)s AND kind = 'end_user' LIMIT %(limit)s)

-- name: forget_end_users_of_openings
UPDATE usage_openings SET end_user = ''
WHERE id IN (
  SELECT id FROM usage_openings WHERE tenant_id = %(tenant)s AND end_user <> '' ORDER BY id LIMIT %(limit)s FOR UPDATE)
