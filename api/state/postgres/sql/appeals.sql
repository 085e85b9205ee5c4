-- name: event
SELECT id, request_id, action, direction, policy_version, categories FROM safety_events
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: keep_event
-- The retention does not delete the event before the end of the transaction
SELECT id FROM safety_events WHERE tenant_id = %(tenant)s AND id = %(id)s FOR KEY SHARE

-- name: open
INSERT INTO safety_appeals (tenant_id, id, event_id, reason, key_version)
VALUES (%(tenant)s, %(id)s, %(event)s, %(reason)s, %(key_version)s)
ON CONFLICT (tenant_id, event_id) WHERE status = 'open' DO NOTHING
RETURNING id, event_id, reason, status, reviewer, note, review, key_version, created_at, decided_at

-- name: get
SELECT id, event_id, reason, status, reviewer, note, review, key_version, created_at, decided_at
FROM safety_appeals
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: lock
SELECT id FROM safety_appeals WHERE tenant_id = %(tenant)s AND id = %(id)s FOR UPDATE

-- name: add_review
UPDATE safety_appeals SET reason = %(reason)s, review = %(review)s, key_version = %(key_version)s
WHERE tenant_id = %(tenant)s AND id = %(id)s AND status = 'open'
RETURNING id, event_id, reason, status, reviewer, note, review, key_version, created_at, decided_at

-- name: decide
UPDATE safety_appeals
SET status = %(status)s, reviewer = %(reviewer)s, reason = %(reason)s, note = %(note)s, review = %(review)s,
    key_version = %(key_version)s, decided_at = now()
WHERE tenant_id = %(tenant)s AND id = %(id)s AND status = 'open'
RETURNING id, event_id, reason, status, reviewer, note, review, key_version, created_at, decided_at

-- name: list_newest_first
SELECT id, event_id, reason, status, reviewer, note, review, key_version, created_at, decided_at
FROM safety_appeals
WHERE tenant_id = %(tenant)s
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(after)s::text IS NULL
       OR (created_at, id) < (SELECT created_at, id FROM safety_appeals WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s

-- name: list_oldest_first
SELECT id, event_id, reason, status, reviewer, note, review, key_version, created_at, decided_at
FROM safety_appeals
WHERE tenant_id = %(tenant)s
  AND (%(status)s::text IS NULL OR status = %(status)s)
  AND (%(after)s::text IS NULL
       OR (created_at, id) > (SELECT created_at, id FROM safety_appeals WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY created_at, id
LIMIT %(limit)s
