-- The statements that delete return one row for each deleted object, with the scopes in which Redis may have copies of it
-- (api/state/redis/read_cache.py).

-- name: retentions
-- Tenants whose data is deleted after a time. The retention of a tenant overrides the general one; NULL keeps data for ever
SELECT tenant_id, keep
FROM (
  SELECT t.id AS tenant_id, CASE WHEN own.tenant_id IS NULL THEN %(keep)s::interval ELSE own.keep END AS keep
  FROM tenants t
  LEFT JOIN unnest(%(tenants)s::text[], %(keep_own)s::interval[]) AS own (tenant_id, keep) ON own.tenant_id = t.id
) AS all_tenants
WHERE keep IS NOT NULL

-- name: lift_fences
-- Tenants whose erasure is so long ago that no replica has writes of them left may store again
UPDATE tenants SET erasing_since = NULL
WHERE erasing_since IS NOT NULL AND erased_at < now() - %(fence)s::interval

-- name: deleted_conversations
DELETE FROM conversations
WHERE (tenant_id, id) IN (
  SELECT tenant_id, id FROM conversations
  WHERE deleted_at < now() - %(keep_deleted)s::interval
  ORDER BY deleted_at LIMIT %(limit)s
  FOR UPDATE SKIP LOCKED)
RETURNING tenant_id, '{}'::text[] AS scopes

-- name: untouched_conversations
WITH untouched AS MATERIALIZED (
  SELECT found.tenant_id, found.id
  FROM unnest(%(tenants)s::text[], %(keep)s::interval[]) AS of_tenant (id, keep)
  CROSS JOIN LATERAL (
    SELECT c.tenant_id, c.id FROM conversations c
    WHERE c.tenant_id = of_tenant.id
      AND c.updated_at < now() - of_tenant.keep
      AND NOT EXISTS (
        SELECT FROM responses r
        WHERE r.tenant_id = c.tenant_id AND r.conversation_id = c.id AND r.status IN ('queued', 'in_progress'))
    ORDER BY c.updated_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED) AS found
  LIMIT %(limit)s
)
DELETE FROM conversations c USING untouched u
WHERE c.tenant_id = u.tenant_id AND c.id = u.id
RETURNING c.tenant_id,
  c.id || ARRAY(SELECT r.id FROM responses r WHERE r.tenant_id = c.tenant_id AND r.conversation_id = c.id) AS scopes

-- name: old_responses
-- Responses outside conversations. Those of a conversation are deleted with the conversation
WITH old AS MATERIALIZED (
  SELECT found.tenant_id, found.id
  FROM unnest(%(tenants)s::text[], %(keep)s::interval[]) AS of_tenant (id, keep)
  CROSS JOIN LATERAL (
    SELECT r.tenant_id, r.id FROM responses r
    WHERE r.tenant_id = of_tenant.id AND r.conversation_id IS NULL AND r.status NOT IN ('queued', 'in_progress')
      AND r.created_at < now() - of_tenant.keep
    ORDER BY r.created_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED) AS found
  LIMIT %(limit)s
), their_items AS (
  DELETE FROM items i USING old o WHERE i.tenant_id = o.tenant_id AND i.response_id = o.id
)
DELETE FROM responses r USING old o
WHERE r.tenant_id = o.tenant_id AND r.id = o.id
RETURNING r.tenant_id, ARRAY[r.id] AS scopes

-- name: old_chat_completions
WITH old AS MATERIALIZED (
  SELECT found.tenant_id, found.id
  FROM unnest(%(tenants)s::text[], %(keep)s::interval[]) AS of_tenant (id, keep)
  CROSS JOIN LATERAL (
    SELECT c.tenant_id, c.id FROM chat_completions c
    WHERE c.tenant_id = of_tenant.id
      AND c.created_at < now() - of_tenant.keep
    ORDER BY c.created_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED) AS found
  LIMIT %(limit)s
)
DELETE FROM chat_completions c USING old o
WHERE c.tenant_id = o.tenant_id AND c.id = o.id
RETURNING c.tenant_id, '{}'::text[] AS scopes

-- name: old_events
WITH old AS (
  UPDATE responses SET has_events = false, event_bytes = 0
  WHERE (tenant_id, id) IN (
    SELECT tenant_id, id FROM responses
    WHERE finished_at < now() - %(keep_events)s::interval AND has_events
    ORDER BY finished_at LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED)
  RETURNING tenant_id, id
), their_events AS (
  DELETE FROM response_events e USING old o WHERE e.tenant_id = o.tenant_id AND e.response_id = o.id
)
SELECT tenant_id, '{}'::text[] AS scopes FROM old
