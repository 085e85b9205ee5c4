-- name: as_tenant
-- The rest of the transaction sees and writes the rows of this tenant alone, even while the tenant is being erased
SELECT set_config('app.tenant_id', %(tenant)s, true)

-- name: add_tenant
INSERT INTO tenants (id) VALUES (%(tenant)s) ON CONFLICT DO NOTHING

-- name: add_account
INSERT INTO accounts (tenant_id, name, settings) VALUES (%(tenant)s, %(name)s, %(settings)s)
RETURNING tenant_id, name, status, settings, created_at

-- name: account
SELECT tenant_id, name, status, settings, created_at FROM accounts WHERE tenant_id = %(tenant)s

-- name: lock_account
SELECT tenant_id, name, status, settings, created_at FROM accounts WHERE tenant_id = %(tenant)s FOR UPDATE

-- name: account_named
SELECT tenant_id FROM accounts WHERE name = %(name)s

-- name: accounts
SELECT tenant_id, name, status, settings, created_at FROM accounts
WHERE %(after)s::text IS NULL OR tenant_id > %(after)s
ORDER BY tenant_id LIMIT %(limit)s

-- name: change_account
UPDATE accounts SET name = %(name)s, status = %(status)s, settings = %(settings)s WHERE tenant_id = %(tenant)s
RETURNING tenant_id, name, status, settings, created_at

-- name: add_project
INSERT INTO projects (tenant_id, id, name, is_default, limits)
VALUES (%(tenant)s, %(id)s, %(name)s, %(is_default)s, %(limits)s)
RETURNING tenant_id, id, name, is_default, limits, created_at, archived_at

-- name: projects
SELECT tenant_id, id, name, is_default, limits, created_at, archived_at FROM projects
WHERE tenant_id = %(tenant)s AND (%(after)s::text IS NULL OR id > %(after)s)
ORDER BY id LIMIT %(limit)s

-- name: tenant_of_project
SELECT tenant_id FROM projects WHERE id = %(id)s

-- name: lock_project
SELECT tenant_id, id, name, is_default, limits, created_at, archived_at FROM projects
WHERE tenant_id = %(tenant)s AND id = %(id)s FOR UPDATE

-- name: default_project
SELECT tenant_id, id, name, is_default, limits, created_at, archived_at FROM projects
WHERE tenant_id = %(tenant)s AND is_default FOR UPDATE

-- name: change_project
UPDATE projects SET name = %(name)s, limits = %(limits)s,
  archived_at = CASE WHEN %(is_archived)s THEN coalesce(archived_at, now()) END
WHERE tenant_id = %(tenant)s AND id = %(id)s
RETURNING tenant_id, id, name, is_default, limits, created_at, archived_at

-- name: note
INSERT INTO account_changes (tenant_id, actor, action, object, before, after)
VALUES (%(tenant)s, %(actor)s, %(action)s, %(object)s, %(before)s, %(after)s)

-- name: changes
SELECT sequence, tenant_id, at, actor, action, object, before, after FROM account_changes
WHERE (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s) AND (%(before)s::bigint IS NULL OR sequence < %(before)s)
ORDER BY sequence DESC LIMIT %(limit)s
