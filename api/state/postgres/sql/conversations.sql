-- name: create
INSERT INTO conversations (tenant_id, id, end_user, metadata, title, title_key_version)
VALUES (%(tenant)s, %(id)s, %(end_user)s, %(metadata)s, %(title)s, %(key_version)s)
RETURNING id, created_at, updated_at, end_user, metadata, title, title_key_version

-- name: get
SELECT id, created_at, updated_at, end_user, metadata, title, title_key_version
FROM conversations
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL

-- name: update
UPDATE conversations SET
  metadata = coalesce(%(metadata)s, metadata),
  title = CASE WHEN %(changes_title)s THEN %(title)s ELSE title END,
  title_key_version = CASE WHEN %(changes_title)s THEN %(key_version)s ELSE title_key_version END,
  title_of = CASE WHEN %(changes_title)s THEN NULL ELSE title_of END,
  updated_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING id, created_at, updated_at, end_user, metadata, title, title_key_version

-- name: add_title
UPDATE conversations SET title = %(title)s, title_key_version = %(key_version)s, title_of = %(items)s
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL AND title IS NULL
  AND cardinality(%(items)s::text[]) = (
    SELECT count(*) FROM items
    WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s AND id = ANY (%(items)s) AND superseded_at IS NULL)

-- name: delete
UPDATE conversations SET deleted_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND deleted_at IS NULL
RETURNING id

-- name: lock_responses
-- As everywhere, responses are locked before their conversation
SELECT FROM responses WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s ORDER BY id FOR UPDATE

-- name: delete_responses
DELETE FROM responses WHERE tenant_id = %(tenant)s AND conversation_id = %(id)s
RETURNING id

-- name: list_newest_first
-- The page after an entry: at the place where the entry was (at), or else where it is now
SELECT id, created_at, updated_at, end_user, metadata, title, title_key_version
FROM conversations
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL
  AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
  AND metadata @> %(metadata)s
  AND (%(after)s::text IS NULL
       OR (updated_at, id) < (
         coalesce(%(at)s::timestamptz, (SELECT updated_at FROM conversations WHERE tenant_id = %(tenant)s AND id = %(after)s)),
         %(after)s))
ORDER BY updated_at DESC, id DESC
LIMIT %(limit)s

-- name: list_oldest_first
-- The page after an entry: at the place where the entry was (at), or else where it is now
SELECT id, created_at, updated_at, end_user, metadata, title, title_key_version
FROM conversations
WHERE tenant_id = %(tenant)s AND deleted_at IS NULL
  AND (%(end_user)s::text IS NULL OR end_user = %(end_user)s)
  AND metadata @> %(metadata)s
  AND (%(after)s::text IS NULL
       OR (updated_at, id) > (
         coalesce(%(at)s::timestamptz, (SELECT updated_at FROM conversations WHERE tenant_id = %(tenant)s AND id = %(after)s)),
         %(after)s))
ORDER BY updated_at, id
LIMIT %(limit)s

-- name: get_item
SELECT id, status, body, key_version
FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s AND superseded_at IS NULL

-- name: had_item
SELECT id FROM items
WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s

-- name: lock_response_of_item
SELECT FROM responses r JOIN items i ON i.tenant_id = r.tenant_id AND i.response_id = r.id
WHERE r.tenant_id = %(tenant)s AND i.id = %(id)s
FOR NO KEY UPDATE OF r

-- name: lock
-- Before an item is deleted: no summary of it is stored meanwhile
SELECT id FROM conversations WHERE tenant_id = %(tenant)s AND id = %(conversation)s FOR NO KEY UPDATE

-- name: forget_in_branches
-- Deletes the summaries in responses outside the conversation that follow the item by previous_response_id
WITH RECURSIVE branches AS (
  SELECT r.id FROM responses r
  WHERE r.tenant_id = %(tenant)s AND r.previous_response_id IN (
    SELECT i.response_id FROM items i
    WHERE i.tenant_id = %(tenant)s AND i.conversation_id = %(conversation)s AND i.response_id IS NOT NULL
      AND i.seq >= (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s))
  UNION
  SELECT r.id FROM responses r JOIN branches b ON r.tenant_id = %(tenant)s AND r.previous_response_id = b.id
)
DELETE FROM items i USING branches b
WHERE i.tenant_id = %(tenant)s AND i.response_id = b.id AND i.covers IS NOT NULL

-- name: delete_item
-- Deletes an item with all that was derived from it: later summaries, the title, and feedback on this item alone
WITH gone AS (
  DELETE FROM items
  WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(id)s
  RETURNING tenant_id, id, seq, response_id, is_output
), events AS (
  DELETE FROM response_events e USING gone
  WHERE e.tenant_id = gone.tenant_id AND e.response_id = gone.response_id AND gone.is_output
), without_events AS (
  UPDATE responses r SET has_events = false, event_bytes = 0 FROM gone
  WHERE r.tenant_id = gone.tenant_id AND r.id = gone.response_id AND gone.is_output
), summaries AS (
  DELETE FROM items i USING gone
  WHERE i.tenant_id = %(tenant)s AND i.conversation_id = %(conversation)s AND i.covers IS NOT NULL AND i.seq > gone.seq
), title AS (
  UPDATE conversations c SET title = NULL, title_key_version = NULL, title_of = NULL FROM gone
  WHERE c.tenant_id = %(tenant)s AND c.id = %(conversation)s AND gone.id = ANY (c.title_of)
), feedback AS (
  DELETE FROM feedback f USING gone
  WHERE f.tenant_id = gone.tenant_id AND f.response_id = gone.response_id AND f.item_id = gone.id
)
SELECT response_id FROM gone

-- name: items_newest_first
-- A page ends after `limit` rows, or before max_bytes are exceeded; its first row is always in it
SELECT id, status, body, key_version, number
FROM (
  SELECT *, sum(octet_length(body)) OVER (ORDER BY seq DESC) AS total, count(*) OVER () AS number
  FROM (
    SELECT id, status, body, key_version, seq
    FROM items
    WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND superseded_at IS NULL
      AND (%(after)s::text IS NULL
           OR seq < (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(after)s))
    ORDER BY seq DESC
    LIMIT %(limit)s
  ) AS page
) AS measured
WHERE %(max_bytes)s::bigint IS NULL OR total - octet_length(body) < %(max_bytes)s
ORDER BY seq DESC

-- name: items_oldest_first
-- A page ends after `limit` rows, or before max_bytes are exceeded; its first row is always in it
SELECT id, status, body, key_version, number
FROM (
  SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) AS total, count(*) OVER () AS number
  FROM (
    SELECT id, status, body, key_version, seq
    FROM items
    WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND superseded_at IS NULL
      AND (%(after)s::text IS NULL
           OR seq > (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(after)s))
    ORDER BY seq
    LIMIT %(limit)s
  ) AS page
) AS measured
WHERE %(max_bytes)s::bigint IS NULL OR total - octet_length(body) < %(max_bytes)s
ORDER BY seq
