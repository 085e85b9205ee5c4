-- name: lock_response
SELECT FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s FOR SHARE

-- name: lock_conversation
-- The conversation of the response. As everywhere, the response is locked before its conversation. Turns of the
-- conversation wait, and so do deletions of its items
SELECT c.id FROM conversations c JOIN responses r ON r.tenant_id = c.tenant_id AND r.conversation_id = c.id
WHERE r.tenant_id = %(tenant)s AND r.id = %(id)s
FOR UPDATE OF c

-- name: summarized_response
-- The response, if all items that the summary covers are still in its conversation
SELECT conversation_id, (SELECT coalesce(max(position) + 1, 0) FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s) AS position
FROM responses r
WHERE tenant_id = %(tenant)s AND id = %(id)s
  AND CASE WHEN conversation_id IS NULL
    THEN EXISTS (SELECT FROM items WHERE tenant_id = %(tenant)s AND id = %(last)s)
    ELSE %(number)s = (
      SELECT count(*) FROM items last JOIN items i ON i.tenant_id = last.tenant_id AND i.conversation_id = last.conversation_id
      WHERE last.tenant_id = %(tenant)s AND last.id = %(last)s AND last.conversation_id = r.conversation_id
        AND last.superseded_at IS NULL AND i.seq <= last.seq AND i.superseded_at IS NULL AND i.covers IS NULL)
    END

-- name: remember
UPDATE responses SET memory = %(items)s WHERE tenant_id = %(tenant)s AND id = %(id)s
