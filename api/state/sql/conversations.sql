-- name: create
INSERT INTO conversations (tenant_id, id, end_user, metadata, title, title_key_version)
VALUES (%(tenant)s, %(id)s, %(end_user)s, %(metadata)s, %(title)s, %(key_version)s)
RETURNING id, created_at, updated_at, end_user, metadata, title, title_key_version

-- name: get
SELECT id, created_at, updated_at, end_user, metadata, title, title_key_version
FROM conversations
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL

-- name: update
UPDATE conversations SET
  metadata = coalesce(%(metadata)s, metadata),
  title = CASE WHEN %(changes_title)s THEN %(title)s ELSE title END,
  title_key_version = CASE WHEN %(changes_title)s THEN %(key_version)s ELSE title_key_version END,
  updated_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING id, created_at, updated_at, end_user, metadata, title, title_key_version

-- name: add_title
UPDATE conversations SET title = %(title)s, title_key_version = %(key_version)s
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL AND title IS NULL
  AND cardinality(%(items)s::text[]) = (
    SELECT count(*) FROM items
    WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s AND id = ANY (%(items)s) AND superseded_at IS NULL)

-- name: delete
UPDATE conversations SET deleted_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING id

-- name: lock_responses
-- As whoever finishes one does: the response before its conversation
SELECT FROM responses WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s ORDER BY id FOR UPDATE

-- name: delete_responses
DELETE FROM responses WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s
RETURNING id

-- name: list_newest_first
SELECT id, created_at, updated_at, end_user, metadata, title, title_key_version
FROM conversations
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL
  AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
  AND metadata @> %(metadata)s
  AND (%(after)s::text IS NULL
       OR (updated_at, id) < (SELECT updated_at, id FROM conversations WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY updated_at DESC, id DESC
LIMIT %(limit)s

-- name: list_oldest_first
SELECT id, created_at, updated_at, end_user, metadata, title, title_key_version
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
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s AND superseded_at IS NULL

-- name: had_item
SELECT id FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s

-- name: lock_response_of_item
SELECT FROM responses r JOIN items i ON i.tenant_id = r.tenant_id AND i.response_id = r.id
WHERE r.tenant_id = %(tenant)s AND i.id = %(id)s
FOR NO KEY UPDATE OF r

-- name: lock
-- Before its items are deleted: no summary of them is written meanwhile
SELECT id FROM conversations WHERE tenant_id = %(tenant)s AND id = %(conversation)s FOR NO KEY UPDATE

-- name: delete_item
-- With the summaries that may tell of it
WITH gone AS (
  DELETE FROM items
  WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s
  RETURNING tenant_id, seq, response_id, is_output
), events AS (
  DELETE FROM response_events e USING gone
  WHERE e.tenant_id = gone.tenant_id AND e.response_id = gone.response_id AND gone.is_output
), told AS (
  UPDATE responses r SET has_events = false FROM gone
  WHERE r.tenant_id = gone.tenant_id AND r.id = gone.response_id AND gone.is_output
), summaries AS (
  DELETE FROM items i USING gone
  WHERE i.tenant_id = %(tenant)s AND i.conversation_id = %(conversation)s AND i.covers IS NOT NULL AND i.seq > gone.seq
)
SELECT response_id FROM gone

-- name: items_newest_first
SELECT id, status, body, key_version
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND superseded_at IS NULL
  AND (%(after)s::text IS NULL
       OR seq < (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(after)s))
ORDER BY seq DESC
LIMIT %(limit)s

-- name: items_oldest_first
SELECT id, status, body, key_version
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND superseded_at IS NULL
  AND (%(after)s::text IS NULL
       OR seq > (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(after)s))
ORDER BY seq
LIMIT %(limit)s
