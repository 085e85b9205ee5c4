-- name: append
-- Writes the batches of responses that still run, and whose last stored event is the one before the batch
WITH batch AS (
  SELECT * FROM unnest(%(tenants)s::text[], %(ids)s::text[], %(statuses)s::text[], %(firsts)s::int[], %(lasts)s::int[],
                       %(events)s::bytea[], %(key_versions)s::int[])
    AS b (tenant_id, id, status, first_number, last_number, events, key_version)
), written AS (
  UPDATE responses r SET last_number = b.last_number, status = b.status
  FROM batch b
  WHERE r.tenant_id = b.tenant_id AND r.id = b.id AND r.status IN ('queued', 'in_progress')
    AND r.last_number = b.first_number - 1
  RETURNING r.tenant_id, r.id, r.is_cancelled
), added AS (
  INSERT INTO response_events (tenant_id, response_id, first_number, last_number, events, key_version)
  SELECT tenant_id, id, b.first_number, b.last_number, b.events, b.key_version
  FROM batch b JOIN written USING (tenant_id, id)
)
SELECT id, is_cancelled FROM written

-- name: add
INSERT INTO response_events (tenant_id, response_id, first_number, last_number, events, key_version)
VALUES (%(tenant)s, %(id)s, %(first)s, %(last)s, %(events)s, %(key_version)s)

-- name: renew
UPDATE responses r SET lease_until = now() + %(claim)s
FROM unnest(%(tenants)s::text[], %(ids)s::text[]) AS b (tenant_id, id)
WHERE r.tenant_id = b.tenant_id AND r.id = b.id AND r.status IN ('queued', 'in_progress')
RETURNING r.id, r.is_cancelled

-- name: standing
SELECT status, last_number, has_events, coalesce(extract(epoch FROM now() - finished_at), 0)::float8 AS over_for_s
FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: created
SELECT id, body, key_version FROM responses WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: since
-- Batches up to max_bytes; the first batch is always among them
SELECT first_number, events, key_version
FROM (
  SELECT first_number, events, key_version, sum(octet_length(events)) OVER (ORDER BY first_number) AS total
  FROM response_events
  WHERE tenant_id = %(tenant)s AND response_id = %(id)s AND last_number > %(after)s
  ORDER BY first_number
  LIMIT %(limit)s
) AS next
WHERE %(max_bytes)s::bigint IS NULL OR total - octet_length(events) < %(max_bytes)s
ORDER BY first_number

-- name: orphans
-- Responses whose generation claim (lease_until) has run out
SELECT tenant_id, id FROM responses
WHERE status IN ('queued', 'in_progress') AND lease_until < now()
ORDER BY lease_until
LIMIT %(limit)s

-- name: lock_orphan
SELECT id, body, key_version, is_cancelled FROM responses
WHERE tenant_id = %(tenant)s AND id = %(id)s AND status IN ('queued', 'in_progress') AND lease_until < now()
FOR UPDATE SKIP LOCKED

-- name: give_up
UPDATE responses SET status = 'failed', finished_at = now(), has_events = false, event_bytes = 0
WHERE tenant_id = %(tenant)s AND id = %(id)s AND status IN ('queued', 'in_progress') AND lease_until < now()
RETURNING id
