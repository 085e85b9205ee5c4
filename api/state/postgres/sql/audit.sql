-- name: chain
SELECT chain_key, key_version, begins_at, head_sequence, head_hash, anchor_sequence, anchor_hash, mac
FROM safety_chains
WHERE tenant_id = %(tenant)s

-- name: lock_chain
SELECT chain_key, key_version, begins_at, head_sequence, head_hash, anchor_sequence, anchor_hash, mac
FROM safety_chains
WHERE tenant_id = %(tenant)s
FOR UPDATE

-- name: begins_at
-- The last erasure of the tenant: the first key after it was made when all earlier ones had been destroyed
SELECT coalesce(extract(epoch FROM max(k.created_at)), 0)::double precision AS begins_at
FROM tenant_keys k
WHERE k.tenant_id = %(tenant)s AND k.version > 1
  AND NOT EXISTS (
    SELECT FROM tenant_keys e
    WHERE e.tenant_id = k.tenant_id AND e.version < k.version
      AND (e.destroyed_at IS NULL OR e.destroyed_at > k.created_at))

-- name: add_chain
INSERT INTO safety_chains
  (tenant_id, chain_key, key_version, begins_at, head_sequence, head_hash, anchor_sequence, anchor_hash, mac)
VALUES
  (%(tenant)s, %(chain_key)s, %(key_version)s, %(begins_at)s, %(head_sequence)s, %(head_hash)s, %(anchor_sequence)s,
   %(anchor_hash)s, %(mac)s)
ON CONFLICT (tenant_id) DO NOTHING

-- name: move_ends
UPDATE safety_chains
SET head_sequence = %(head_sequence)s, head_hash = %(head_hash)s, anchor_sequence = %(anchor_sequence)s,
    anchor_hash = %(anchor_hash)s, mac = %(mac)s
WHERE tenant_id = %(tenant)s

-- name: known
SELECT id FROM safety_events WHERE tenant_id = %(tenant)s AND id = ANY (%(ids)s)

-- name: add
INSERT INTO safety_events
  (tenant_id, sequence, id, request_id, at, direction, action, policy_version, categories, verdicts, text_mac, evidence,
   key_version, evidence_mac, hash)
VALUES
  (%(tenant)s, %(sequence)s, %(id)s, %(request_id)s, %(at)s, %(direction)s, %(action)s, %(policy_version)s,
   %(categories)s::text[], %(verdicts)s::json, %(text_mac)s, %(evidence)s, %(key_version)s, %(evidence_mac)s, %(hash)s)

-- name: get
SELECT tenant_id, sequence, id, request_id, at, direction, action, policy_version, categories,
  verdicts::text AS verdicts, text_mac, evidence, key_version, evidence_mac, hash
FROM safety_events
WHERE tenant_id = %(tenant)s AND id = %(id)s

-- name: rows
SELECT tenant_id, sequence, id, request_id, at, direction, action, policy_version, categories,
  verdicts::text AS verdicts, text_mac, evidence, key_version, evidence_mac, hash
FROM safety_events
WHERE tenant_id = %(tenant)s AND (%(after)s::bigint IS NULL OR sequence > %(after)s)
ORDER BY sequence
LIMIT %(limit)s

-- name: list_newest_first
SELECT tenant_id, sequence, id, request_id, at, direction, action, policy_version, categories,
  verdicts::text AS verdicts, text_mac, NULL::bytea AS evidence, NULL::int AS key_version, evidence_mac, hash
FROM safety_events
WHERE tenant_id = %(tenant)s
  AND (%(action)s::text IS NULL OR action = %(action)s)
  AND (%(direction)s::text IS NULL OR direction = %(direction)s)
  AND (%(category)s::text IS NULL OR %(category)s = ANY (categories))
  AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s)
  AND (%(after)s::text IS NULL
       OR sequence < (SELECT sequence FROM safety_events WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY sequence DESC
LIMIT %(limit)s

-- name: list_oldest_first
SELECT tenant_id, sequence, id, request_id, at, direction, action, policy_version, categories,
  verdicts::text AS verdicts, text_mac, NULL::bytea AS evidence, NULL::int AS key_version, evidence_mac, hash
FROM safety_events
WHERE tenant_id = %(tenant)s
  AND (%(action)s::text IS NULL OR action = %(action)s)
  AND (%(direction)s::text IS NULL OR direction = %(direction)s)
  AND (%(category)s::text IS NULL OR %(category)s = ANY (categories))
  AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s)
  AND (%(after)s::text IS NULL
       OR sequence > (SELECT sequence FROM safety_events WHERE tenant_id = %(tenant)s AND id = %(after)s))
ORDER BY sequence
LIMIT %(limit)s

-- name: tenants
-- Of every tenant that has a chain, or events without one
SELECT id FROM tenants t
WHERE EXISTS (SELECT FROM safety_chains c WHERE c.tenant_id = t.id)
   OR EXISTS (SELECT FROM safety_events e WHERE e.tenant_id = t.id)
ORDER BY id

-- name: delete_oldest
DELETE FROM safety_events WHERE tenant_id = %(tenant)s AND sequence <= %(sequence)s
