-- name: add
INSERT INTO chat_completions (tenant_id, id, model, end_user, metadata, body, messages, key_version, created_at)
VALUES
  (%(tenant)s, %(id)s, %(model)s, %(end_user)s, %(metadata)s, %(body)s, %(messages)s, %(key_version)s, %(created_at)s)
ON CONFLICT DO NOTHING

-- name: get
SELECT id, metadata, body, key_version FROM chat_completions
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: messages
SELECT messages, key_version FROM chat_completions
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: update_metadata
UPDATE chat_completions SET metadata = %(metadata)s
WHERE tenant_id = %(tenant)s AND id = %(id)s
RETURNING id, metadata, body, key_version

-- name: delete
DELETE FROM chat_completions WHERE tenant_id = %(tenant)s AND id = %(id)s RETURNING id

-- name: list_newest_first
-- A page ends after `limit` rows, or before max_bytes are exceeded; its first row is always in it
SELECT id, metadata, body, key_version, number
FROM (
  SELECT *, sum(octet_length(body)) OVER (ORDER BY created_at DESC, id DESC) AS total, count(*) OVER () AS number
  FROM (
    SELECT id, metadata, body, key_version, created_at
    FROM chat_completions
    WHERE tenant_id = %(tenant)s
      AND (%(model)s::text IS NULL OR model = %(model)s)
      AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
      AND metadata @> %(metadata)s
      AND (%(after)s::text IS NULL
           OR (created_at, id) < (SELECT created_at, id FROM chat_completions WHERE tenant_id = %(tenant)s AND id = %(after)s))
    ORDER BY created_at DESC, id DESC
    LIMIT %(limit)s
  ) AS page
) AS measured
WHERE total - octet_length(body) < %(max_bytes)s
ORDER BY created_at DESC, id DESC

-- name: list_oldest_first
-- A page ends after `limit` rows, or before max_bytes are exceeded; its first row is always in it
SELECT id, metadata, body, key_version, number
FROM (
  SELECT *, sum(octet_length(body)) OVER (ORDER BY created_at, id) AS total, count(*) OVER () AS number
  FROM (
    SELECT id, metadata, body, key_version, created_at
    FROM chat_completions
    WHERE tenant_id = %(tenant)s
      AND (%(model)s::text IS NULL OR model = %(model)s)
      AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
      AND metadata @> %(metadata)s
      AND (%(after)s::text IS NULL
           OR (created_at, id) > (SELECT created_at, id FROM chat_completions WHERE tenant_id = %(tenant)s AND id = %(after)s))
    ORDER BY created_at, id
    LIMIT %(limit)s
  ) AS page
) AS measured
WHERE total - octet_length(body) < %(max_bytes)s
ORDER BY created_at, id
