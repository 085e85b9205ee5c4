-- name: subject
SELECT 'response' AS kind FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s
UNION ALL
SELECT 'chat_completion' FROM chat_completions WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: item
SELECT id FROM items WHERE tenant_id = %(tenant)s AND response_id = %(response)s AND id = %(id)s

-- name: of_user
SELECT id FROM feedback
WHERE tenant_id = %(tenant)s AND (response_id = %(response)s OR chat_completion_id = %(chat_completion)s)
  AND end_user IS NOT DISTINCT FROM %(end_user)s

-- name: put
INSERT INTO feedback
  (tenant_id, id, response_id, chat_completion_id, item_id, end_user, rating, labels, comment, key_version)
VALUES
  (%(tenant)s, %(id)s, %(response)s, %(chat_completion)s, %(item)s, %(end_user)s, %(rating)s, %(labels)s, %(comment)s,
   %(key_version)s)
ON CONFLICT (tenant_id, response_id, chat_completion_id, end_user) DO UPDATE
SET id = excluded.id, item_id = excluded.item_id, rating = excluded.rating, labels = excluded.labels,
    comment = excluded.comment, key_version = excluded.key_version
RETURNING created_at

-- name: delete
DELETE FROM feedback WHERE tenant_id = %(tenant)s AND id = %(id)s RETURNING id

-- name: get
SELECT id FROM feedback WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: list_newest_first
SELECT id, coalesce(response_id, chat_completion_id) AS subject, item_id, end_user, rating, labels, comment, key_version,
  created_at
FROM feedback
WHERE tenant_id = %(tenant)s
  AND (%(subject)s::text IS NULL OR response_id = %(subject)s OR chat_completion_id = %(subject)s)
  AND (%(rating)s::smallint IS NULL OR rating = %(rating)s)
  AND (%(after)s::text IS NULL
       OR (created_at, id) < (SELECT created_at, id FROM feedback WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s

-- name: list_oldest_first
SELECT id, coalesce(response_id, chat_completion_id) AS subject, item_id, end_user, rating, labels, comment, key_version,
  created_at
FROM feedback
WHERE tenant_id = %(tenant)s
  AND (%(subject)s::text IS NULL OR response_id = %(subject)s OR chat_completion_id = %(subject)s)
  AND (%(rating)s::smallint IS NULL OR rating = %(rating)s)
  AND (%(after)s::text IS NULL
       OR (created_at, id) > (SELECT created_at, id FROM feedback WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY created_at, id
LIMIT %(limit)s
