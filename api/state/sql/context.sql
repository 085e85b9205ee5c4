-- name: summarized_response
SELECT conversation_id, (SELECT count(*)::int FROM items WHERE tenant_id = %(tenant)s AND response_id = %(id)s) AS num_items
FROM responses
WHERE tenant_id = %(tenant)s AND id = %(id)s
  AND EXISTS (SELECT 1 FROM items WHERE tenant_id = %(tenant)s AND id = %(last)s)
FOR SHARE

-- name: remember
UPDATE responses SET memory = %(items)s WHERE tenant_id = %(tenant)s AND id = %(id)s
