-- name: status
SELECT status FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: of_conversation
SELECT id, octet_length(body) AS num_bytes
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND superseded_at IS NULL
ORDER BY seq

-- name: up_to
-- The items of a response and of the turns before it, and the items that the first of these turns followed in its
-- conversation
WITH RECURSIVE turns AS (
  SELECT id, previous_response_id, conversation_id, 0 AS depth
  FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s
  UNION ALL
  SELECT r.id, r.previous_response_id, r.conversation_id, t.depth + 1
  FROM responses r JOIN turns t ON r.id = t.previous_response_id
  WHERE r.tenant_id = %(tenant)s AND t.depth <= %(most)s
), first_turn AS (
  SELECT t.conversation_id, min(i.seq) AS seq
  FROM turns t JOIN items i ON i.tenant_id = %(tenant)s AND i.response_id = t.id
  WHERE t.previous_response_id IS NULL
  GROUP BY t.conversation_id
), history AS (
  SELECT i.id, 0 AS part, 0 AS turn, i.seq AS place
  FROM first_turn f JOIN items i ON i.tenant_id = %(tenant)s AND i.conversation_id = f.conversation_id AND i.seq < f.seq
    AND (i.superseded_at IS NULL OR i.superseded_at > f.seq)
  UNION ALL
  SELECT i.id, 1, -t.depth, i.position
  FROM turns t JOIN items i ON i.tenant_id = %(tenant)s AND i.response_id = t.id
)
SELECT i.id, octet_length(i.body) AS num_bytes, i.is_output AND i.response_id = %(id)s AS is_answer
FROM history h JOIN items i ON i.tenant_id = %(tenant)s AND i.id = h.id
ORDER BY h.part, h.turn, h.place
LIMIT 2 * %(most)s + 1

-- name: items
SELECT i.id, i.status, i.body, i.key_version, i.covers_through, i.covers,
  CASE WHEN i.role = 'user' AND NOT i.is_output THEN i.response_id END AS asked_by, r.memory
FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS h (id, place)
JOIN items i ON i.tenant_id = %(tenant)s AND i.id = h.id
LEFT JOIN responses r ON r.tenant_id = i.tenant_id AND r.id = i.response_id
ORDER BY h.place
