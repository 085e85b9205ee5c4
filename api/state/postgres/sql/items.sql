-- name: reserve_seqs
UPDATE conversations SET next_seq = next_seq + %(number)s, bytes = bytes + %(bytes)s, updated_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING next_seq - %(number)s AS first_seq, bytes

-- name: add
-- Search finds the items a moment later, when a background job has indexed their words
WITH added AS (
  INSERT INTO items
    (tenant_id, id, conversation_id, seq, response_id, position, is_output, type, role, status, body, key_version,
     covers_through, covers)
  SELECT
    %(tenant)s, id, %(conversation)s::text, %(first_seq)s::bigint + number - 1, %(response)s::text,
    %(first_position)s::int + number - 1, %(is_output)s, type, role, status, body, %(key_version)s,
    %(covers_through)s::text, %(covers)s::int
  FROM unnest(%(ids)s::text[], %(types)s::text[], %(roles)s::text[], %(statuses)s::text[], %(bodies)b::bytea[])
    WITH ORDINALITY AS i (id, type, role, status, body, number)
  RETURNING tenant_id, id, conversation_id, type, role
)
INSERT INTO item_words (tenant_id, item_id)
SELECT tenant_id, id FROM added
WHERE conversation_id IS NOT NULL AND type = 'message' AND role IN ('user', 'assistant')

-- name: size
-- The bytes of these items; an item counts as often as it is named
SELECT coalesce(sum(octet_length(i.body)), 0) AS size
FROM unnest(%(ids)s::text[]) AS named (id) JOIN items i ON i.tenant_id = %(tenant)s AND i.id = named.id

-- name: by_id
-- Items that a client can still see. Items of deleted conversations stay in the table for a while, and so do replaced items
-- whose response is deleted
SELECT i.id, i.status, i.body, i.key_version
FROM items i LEFT JOIN conversations c ON c.tenant_id = i.tenant_id AND c.id = i.conversation_id
WHERE i.tenant_id = %(tenant)s AND i.id = ANY (%(ids)s) AND c.deleted_at IS NULL
  AND (i.superseded_at IS NULL OR i.response_id IS NOT NULL)

-- name: number
-- Stops counting at the limit
SELECT count(*) AS number FROM (
  SELECT FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s LIMIT %(limit)s) AS counted
