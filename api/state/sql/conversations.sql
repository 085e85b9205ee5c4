-- name: create
INSERT INTO conversations (tenant_id, id, end_user, metadata)
VALUES (%(tenant)s, %(id)s, %(end_user)s, %(metadata)s)
RETURNING id, created_at, updated_at, end_user, metadata

-- name: get
SELECT id, created_at, updated_at, end_user, metadata
FROM conversations
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL

-- name: update_metadata
UPDATE conversations SET metadata = %(metadata)s, updated_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING id, created_at, updated_at, end_user, metadata

-- name: delete
UPDATE conversations SET deleted_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING id

-- name: delete_responses
DELETE FROM responses WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s
RETURNING id

-- name: list_newest_first
SELECT id, created_at, updated_at, end_user, metadata
FROM conversations
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL
  AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
  AND metadata @> %(metadata)s
  AND (%(after)s::text IS NULL
       OR (updated_at, id) < (SELECT updated_at, id FROM conversations WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY updated_at DESC, id DESC
LIMIT %(limit)s

-- name: list_oldest_first
SELECT id, created_at, updated_at, end_user, metadata
FROM conversations
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL
  AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
  AND metadata @> %(metadata)s
  AND (%(after)s::text IS NULL
       OR (updated_at, id) > (SELECT updated_at, id FROM conversations WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY updated_at, id
LIMIT %(limit)s

-- name: get_item
SELECT id, status, body, key_version
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s

-- name: delete_item
DELETE FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s
RETURNING response_id

-- name: items_newest_first
SELECT id, status, body, key_version
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s
  AND (%(after)s::text IS NULL
       OR seq < (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(after)s))
ORDER BY seq DESC
LIMIT %(limit)s

-- name: items_oldest_first
SELECT id, status, body, key_version
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s
  AND (%(after)s::text IS NULL
       OR seq > (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(after)s))
ORDER BY seq
LIMIT %(limit)s

-- name: purge
DELETE FROM conversations
WHERE (tenant_id, id) IN (
  SELECT tenant_id, id FROM conversations
  WHERE deleted_at < now() - %(keep)s::interval
  ORDER BY deleted_at LIMIT %(limit)s
  FOR UPDATE SKIP LOCKED)
RETURNING id
