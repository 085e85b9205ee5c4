-- name: create
INSERT INTO responses
  (tenant_id, id, conversation_id, previous_response_id, status, body, key_version, lease_until)
VALUES
  (%(tenant)s, %(id)s, %(conversation)s, %(previous)s, 'in_progress', %(body)s, %(key_version)s, now() + %(lease)s)

-- name: end_orphan_of_conversation
UPDATE responses SET status = 'failed', is_orphan = true, finished_at = now()
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s
  AND status IN ('queued', 'in_progress') AND lease_until < now()

-- name: end_orphans
UPDATE responses SET status = 'failed', is_orphan = true, finished_at = now()
WHERE status IN ('queued', 'in_progress') AND lease_until < now()

-- name: renew
UPDATE responses SET lease_until = now() + %(lease)s
WHERE tenant_id = %(tenant)s AND id = %(id)s AND status IN ('queued', 'in_progress')

-- name: finish
UPDATE responses
SET status = %(status)s, body = %(body)s, key_version = %(key_version)s, finished_at = now(), is_orphan = false
WHERE tenant_id = %(tenant)s AND id = %(id)s AND (finished_at IS NULL OR is_orphan)
RETURNING conversation_id, (SELECT count(*)::int FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s) AS num_items

-- name: get
SELECT id, status, body, key_version FROM responses
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: withdraw_items
DELETE FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s

-- name: lock
SELECT status FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s FOR UPDATE

-- name: delete_items
DELETE FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND conversation_id IS NULL

-- name: delete
DELETE FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s RETURNING id

-- name: output
SELECT id, status, body, key_version FROM items
WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND is_output AND covers IS NULL
ORDER BY position

-- name: input_newest_first
SELECT id, status, body, key_version FROM items
WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND NOT is_output
  AND (%(after)s::text IS NULL
       OR position < (SELECT position FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND id = %(after)s))
ORDER BY position DESC
LIMIT %(limit)s

-- name: input_oldest_first
SELECT id, status, body, key_version FROM items
WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND NOT is_output
  AND (%(after)s::text IS NULL
       OR position > (SELECT position FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND id = %(after)s))
ORDER BY position
LIMIT %(limit)s
