-- name: create
INSERT INTO responses
  (tenant_id, id, conversation_id, previous_response_id, status, is_background, body, asked, key_version,
   lease_until)
VALUES
  (%(tenant)s, %(id)s, %(conversation)s, %(previous)s, %(status)s, %(is_background)s, %(body)s, %(asked)s, %(key_version)s,
   now() + %(claim)s)

-- name: finish
UPDATE responses
SET status = %(status)s, outcome = %(outcome)s, last_number = %(last_number)s, finished_at = now(),
  event_bytes = (
    SELECT coalesce(sum(octet_length(e.events)), 0) FROM response_events e
    WHERE e.tenant_id = %(tenant)s AND e.response_id = %(id)s)
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: next_position
SELECT coalesce(max(position) + 1, 0) AS position FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s

-- name: cancel
UPDATE responses SET is_cancelled = true
WHERE tenant_id = %(tenant)s AND id = %(id)s AND is_background AND status IN ('queued', 'in_progress')

-- name: supersede
-- The replaced turn and all later items leave the conversation. No row if an item before the turn has left it meanwhile
WITH first AS (
  SELECT conversation_id, min(seq) AS seq FROM items
  WHERE tenant_id = %(tenant)s AND response_id = %(replaced)s AND conversation_id IS NOT NULL
  GROUP BY conversation_id
), place AS (
  SELECT f.conversation_id, f.seq, c.next_seq
  FROM first f JOIN conversations c ON c.tenant_id = %(tenant)s AND c.id = f.conversation_id
  WHERE NOT EXISTS (
    SELECT FROM items i
    WHERE i.tenant_id = %(tenant)s AND i.conversation_id = f.conversation_id AND i.seq < f.seq AND i.superseded_at > f.seq)
), gone AS (
  UPDATE items i SET superseded_at = p.next_seq
  FROM place p
  WHERE i.tenant_id = %(tenant)s AND i.conversation_id = p.conversation_id AND i.seq >= p.seq AND i.superseded_at IS NULL
)
UPDATE responses r SET supersedes_at = p.next_seq
FROM place p
WHERE r.tenant_id = %(tenant)s AND r.id = %(id)s
RETURNING r.id

-- name: restore
-- Items that the turn has superseded return to the conversation
UPDATE items i SET superseded_at = NULL
FROM responses r
WHERE r.tenant_id = %(tenant)s AND r.id = %(id)s AND i.tenant_id = r.tenant_id
  AND i.conversation_id = r.conversation_id AND i.superseded_at = r.supersedes_at

-- name: get
SELECT id, status, body, outcome, key_version FROM responses
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: asked
SELECT id, body, asked, key_version, previous_response_id, conversation_id FROM responses
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: withdraw_items
DELETE FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s

-- name: lock
SELECT status, conversation_id, last_number, is_background, key_version FROM responses
WHERE tenant_id = %(tenant)s AND id = %(id)s FOR UPDATE

-- name: delete_items
DELETE FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND conversation_id IS NULL

-- name: delete
DELETE FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s RETURNING id

-- name: output
SELECT id, status, body, key_version FROM items
WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND is_output AND covers IS NULL
ORDER BY position

-- name: input_item
SELECT id FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND id = %(item)s AND NOT is_output

-- name: input_newest_first
-- A page ends after `limit` rows, or before max_bytes are exceeded; its first row is always in it
SELECT id, status, body, key_version, number
FROM (
  SELECT *, sum(octet_length(body)) OVER (ORDER BY position DESC) AS total, count(*) OVER () AS number
  FROM (
    SELECT id, status, body, key_version, position
    FROM items
    WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND NOT is_output
      AND (%(after)s::text IS NULL
           OR position < (SELECT position FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND id = %(after)s))
    ORDER BY position DESC
    LIMIT %(limit)s
  ) AS page
) AS measured
WHERE %(max_bytes)s::bigint IS NULL OR total - octet_length(body) < %(max_bytes)s
ORDER BY position DESC

-- name: input_oldest_first
-- A page ends after `limit` rows, or before max_bytes are exceeded; its first row is always in it
SELECT id, status, body, key_version, number
FROM (
  SELECT *, sum(octet_length(body)) OVER (ORDER BY position) AS total, count(*) OVER () AS number
  FROM (
    SELECT id, status, body, key_version, position
    FROM items
    WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND NOT is_output
      AND (%(after)s::text IS NULL
           OR position > (SELECT position FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND id = %(after)s))
    ORDER BY position
    LIMIT %(limit)s
  ) AS page
) AS measured
WHERE %(max_bytes)s::bigint IS NULL OR total - octet_length(body) < %(max_bytes)s
ORDER BY position
