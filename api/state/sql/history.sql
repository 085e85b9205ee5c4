-- name: status
SELECT status FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: of_conversation
SELECT id, status, body, key_version FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND superseded_at IS NULL
ORDER BY seq

-- name: up_to
-- The turns before it, and what the first of them followed in its conversation
WITH RECURSIVE turns AS (
  SELECT id, previous_response_id, conversation_id, 0 AS depth
  FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s
  UNION ALL
  SELECT r.id, r.previous_response_id, r.conversation_id, t.depth + 1
  FROM responses r JOIN turns t ON r.id = t.previous_response_id
  WHERE r.tenant_id = %(tenant)s
), first_turn AS (
  SELECT t.conversation_id, min(i.seq) AS seq
  FROM turns t JOIN items i ON i.tenant_id = %(tenant)s AND i.response_id = t.id
  WHERE t.previous_response_id IS NULL
  GROUP BY t.conversation_id
)
SELECT id, status, body, key_version FROM (
  SELECT i.id, i.status, i.body, i.key_version, 0 AS part, 0 AS turn, i.seq AS place
  FROM first_turn f JOIN items i ON i.tenant_id = %(tenant)s AND i.conversation_id = f.conversation_id AND i.seq < f.seq
    AND (i.superseded_at IS NULL OR i.superseded_at > f.seq)
  UNION ALL
  SELECT i.id, i.status, i.body, i.key_version, 1, -t.depth, i.position
  FROM turns t JOIN items i ON i.tenant_id = %(tenant)s AND i.response_id = t.id
) AS history
ORDER BY part, turn, place
