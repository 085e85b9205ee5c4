-- name: add
INSERT INTO api_keys (tenant_id, id, project_id, digest, handle, name, rights, models, limits, expires_at, lineage)
VALUES (%(tenant)s, %(id)s, %(project)s, %(digest)s, %(handle)s, %(name)s, %(rights)s, %(models)s, %(limits)s,
  to_timestamp(%(expires_at)s), coalesce(%(lineage)s, %(id)s))
RETURNING tenant_id, id, project_id, handle, name, rights, models, limits, created_at, expires_at, revoked_at, rotated_to,
  last_used_at

-- name: tenant_of_key
SELECT tenant_id FROM api_keys WHERE id = %(id)s

-- name: lock
SELECT tenant_id, id, project_id, handle, name, rights, models, limits, created_at, expires_at, revoked_at, rotated_to,
  last_used_at, lineage, expires_at <= now() AS is_expired
FROM api_keys WHERE tenant_id = %(tenant)s AND id = %(id)s FOR UPDATE

-- name: list
SELECT tenant_id, id, project_id, handle, name, rights, models, limits, created_at, expires_at, revoked_at, rotated_to,
  last_used_at
FROM api_keys
WHERE tenant_id = %(tenant)s AND (%(project)s::text IS NULL OR project_id = %(project)s)
  AND (%(after)s::text IS NULL
       OR (created_at, id) > (SELECT created_at, id FROM api_keys WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY created_at, id
LIMIT %(limit)s

-- name: change
UPDATE api_keys SET name = %(name)s, rights = %(rights)s, models = %(models)s, limits = %(limits)s,
  expires_at = to_timestamp(%(expires_at)s)
WHERE tenant_id = %(tenant)s AND id = %(id)s
RETURNING tenant_id, id, project_id, handle, name, rights, models, limits, created_at, expires_at, revoked_at, rotated_to,
  last_used_at

-- name: revoke
UPDATE api_keys SET revoked_at = now() WHERE tenant_id = %(tenant)s AND id = %(id)s
RETURNING tenant_id, id, project_id, handle, name, rights, models, limits, created_at, expires_at, revoked_at, rotated_to,
  last_used_at

-- name: rotate
UPDATE api_keys SET rotated_to = %(rotated_to)s,
  expires_at = least(expires_at, now() + make_interval(secs => %(overlap_s)s))
WHERE tenant_id = %(tenant)s AND id = %(id)s
RETURNING tenant_id, id, project_id, handle, name, rights, models, limits, created_at, expires_at, revoked_at, rotated_to,
  last_used_at

-- name: look_up
-- Keys by digests, with all that authentication needs of them
SELECT k.digest, k.id, k.lineage, k.handle, k.rights, k.models, k.limits, k.revoked_at IS NOT NULL AS is_revoked,
  extract(epoch FROM k.expires_at)::float8 AS expires_at, a.tenant_id, a.status, a.settings, p.id AS project_id,
  p.limits AS project_limits, p.archived_at IS NOT NULL AS is_archived
FROM api_keys k
JOIN projects p ON p.tenant_id = k.tenant_id AND p.id = k.project_id
JOIN accounts a ON a.tenant_id = k.tenant_id
WHERE k.digest = ANY (%(digests)s)

-- name: look_up_projects
-- Projects by tenant and id. An id that is NULL stands for the default project of the tenant
SELECT asked.project AS asked_project, a.tenant_id, a.status, a.settings, p.id AS project_id, p.limits AS project_limits,
  p.archived_at IS NOT NULL AS is_archived
FROM unnest(%(tenants)s::text[], %(projects)s::text[]) AS asked (tenant, project)
JOIN accounts a ON a.tenant_id = asked.tenant
JOIN projects p ON p.tenant_id = a.tenant_id
  AND CASE WHEN asked.project IS NULL THEN p.is_default ELSE p.id = asked.project END

-- name: changes
-- The version of the accounts, and the tenants with changes since another version
SELECT version, ARRAY (
  SELECT tenant_id FROM accounts WHERE changed_in > %(since)s
  UNION SELECT tenant_id FROM projects WHERE changed_in > %(since)s
  UNION SELECT tenant_id FROM api_keys WHERE changed_in > %(since)s
  LIMIT %(limit)s
) AS tenants
FROM accounts_version

-- name: touch
-- Rows that are being changed keep their times: nothing waits for a time of last use
UPDATE api_keys k SET last_used_at = greatest(k.last_used_at, to_timestamp(used.at))
FROM unnest(%(ids)s::text[], %(times)s::float8[]) AS used (id, at)
JOIN (SELECT id FROM api_keys WHERE id = ANY (%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED) AS free ON free.id = used.id
WHERE k.id = free.id
