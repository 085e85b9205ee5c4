-- name: newest
SELECT version, wrapped_key FROM tenant_keys
WHERE tenant_id = %(tenant)s AND wrapped_key IS NOT NULL
ORDER BY version DESC LIMIT 1

-- name: all
SELECT version, wrapped_key FROM tenant_keys
WHERE tenant_id = %(tenant)s AND wrapped_key IS NOT NULL
ORDER BY version

-- name: oldest
SELECT tenant_id, version, wrapped_key FROM tenant_keys
WHERE wrapped_key IS NOT NULL
ORDER BY created_at LIMIT 1

-- name: destroyed
-- The keys that were destroyed since a time. There is at least one row, with the time of this look
SELECT k.tenant_id, k.version, now() AS looked_at
FROM (SELECT 1) AS one
LEFT JOIN tenant_keys k ON k.destroyed_at > coalesce(%(since)s::timestamptz, now()) - %(margin)s::interval

-- name: of_version
SELECT version, wrapped_key FROM tenant_keys
WHERE tenant_id = %(tenant)s AND version = %(version)s AND wrapped_key IS NOT NULL

-- name: add_tenant
INSERT INTO tenants (id) VALUES (%(tenant)s) ON CONFLICT DO NOTHING

-- name: add
INSERT INTO tenant_keys (tenant_id, version, wrapped_key, master_key)
SELECT %(tenant)s, coalesce(max(version), 0) + 1, %(wrapped_key)s, %(master_key)s
FROM tenant_keys WHERE tenant_id = %(tenant)s
ON CONFLICT DO NOTHING
