-- name: reserve_seqs
UPDATE conversations SET next_seq = next_seq + %(number)s, updated_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING next_seq - %(number)s

-- name: add
-- Search finds it when its words are known, a moment later
WITH item AS (
  INSERT INTO items
    (tenant_id, id, conversation_id, seq, response_id, position, is_output, type, role, status, body, key_version,
     covers_through, covers)
  VALUES
    (%(tenant)s, %(id)s, %(conversation)s, %(seq)s, %(response)s, %(position)s, %(is_output)s, %(type)s, %(role)s,
     %(status)s, %(body)s, %(key_version)s, %(covers_through)s, %(covers)s)
  RETURNING tenant_id, id, conversation_id, type, role
)
INSERT INTO item_words (tenant_id, item_id)
SELECT tenant_id, id FROM item
WHERE conversation_id IS NOT NULL AND type = 'message' AND role IN ('user', 'assistant')
