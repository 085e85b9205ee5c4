-- name: append
-- Returns the number of rows that were not there. All writers insert in the order of the key, so that none waits for another
-- that waits for it
WITH given AS (
  SELECT * FROM json_to_recordset(%(rows)s::json) AS r (
    id uuid, attempt int, is_last boolean, tenant_id text, project_id text, key_id text, end_user text, model text,
    request_id text, http_request text, slo_class text, path text, outcome text, ending text, prompt_tokens bigint,
    cached_tokens bigint, generated_tokens bigint, reasoning_tokens bigint, worker text, worker_tokens bigint,
    prefill_worker text, prefill_tokens bigint, is_complete boolean, began_s double precision, ttft_s double precision,
    duration_s double precision, price_version text, currency text, cost_micros bigint)
), added AS (
  INSERT INTO usage_ledger (
    started_at, id, attempt, is_last, tenant_id, project_id, key_id, end_user, model, request_id, http_request,
    slo_class, path, outcome, ending, prompt_tokens, cached_tokens, generated_tokens, reasoning_tokens, worker,
    worker_tokens, prefill_worker, prefill_tokens, is_complete, began_s, ttft_s, duration_s, price_version, currency,
    cost_micros)
  SELECT
    baton_entry_time(id), id, attempt, is_last, tenant_id, project_id, key_id,
    baton_end_user(tenant_id, id, end_user), model, request_id, http_request,
    slo_class, path, outcome, ending, prompt_tokens, cached_tokens, generated_tokens, reasoning_tokens, worker,
    worker_tokens, prefill_worker, prefill_tokens, is_complete, began_s, ttft_s, duration_s, price_version, currency,
    cost_micros
  FROM given ORDER BY id, attempt
  ON CONFLICT DO NOTHING
  RETURNING tenant_id, started_at, id, attempt
), noted AS (
  INSERT INTO usage_outbox (tenant_id, started_at, id, attempt)
  SELECT tenant_id, started_at, id, attempt FROM added WHERE %(publishes)s
)
SELECT count(*) AS added FROM added

-- name: open
-- An entry that has rows already is over, and is not opened again. A subquery with a limit is looked up by the key for each
-- row, and never becomes a join with the whole ledger
INSERT INTO usage_openings (
  id, tenant_id, project_id, key_id, end_user, model, request_id, http_request, slo_class, prompt_tokens, ingress)
SELECT id, tenant_id, project_id, key_id, baton_end_user(tenant_id, id, end_user), model, request_id, http_request,
  slo_class, prompt_tokens, ingress
FROM json_to_recordset(%(openings)s::json) AS r (
  id uuid, tenant_id text, project_id text, key_id text, end_user text, model text, request_id text, http_request text,
  slo_class text, prompt_tokens bigint, ingress text)
WHERE (SELECT true FROM usage_ledger l WHERE l.started_at = baton_entry_time(r.id) AND l.id = r.id LIMIT 1) IS NULL
ORDER BY id
ON CONFLICT DO NOTHING

-- name: close
DELETE FROM usage_openings
WHERE id IN (SELECT id FROM usage_openings WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR UPDATE)

-- name: beat
INSERT INTO usage_writers (ingress, seen_at, waiting) VALUES (%(ingress)s, now(), %(waiting)s)
ON CONFLICT (ingress) DO UPDATE SET seen_at = excluded.seen_at, waiting = excluded.waiting

-- name: leave
DELETE FROM usage_writers WHERE ingress = %(ingress)s

-- name: reap
-- Ends the requests of ingress processes that are gone. What such a request generated is not known
WITH lost AS (
  DELETE FROM usage_openings WHERE id IN (
    SELECT id FROM usage_openings o
    WHERE opened_at < now() - %(lost_after)s
      AND NOT EXISTS (SELECT FROM usage_writers w WHERE w.ingress = o.ingress AND w.seen_at > now() - %(lost_after)s)
    ORDER BY id LIMIT %(limit)s FOR UPDATE)
  RETURNING *
), added AS (
  INSERT INTO usage_ledger (
    started_at, id, attempt, is_last, tenant_id, project_id, key_id, end_user, model, request_id, http_request,
    slo_class, path, outcome, ending, prompt_tokens, cached_tokens, generated_tokens, reasoning_tokens, worker,
    worker_tokens, prefill_worker, prefill_tokens, is_complete, began_s, ttft_s, duration_s, price_version, currency,
    cost_micros)
  SELECT
    baton_entry_time(id), id, 0, true, tenant_id, project_id, key_id, baton_end_user(tenant_id, id, end_user), model, request_id, http_request,
    slo_class, '', 'lost', 'lost', prompt_tokens, 0, 0, 0, '',
    0, '', 0, false, 0, NULL, greatest(0, extract(epoch FROM now() - baton_entry_time(id))), '', '', 0
  FROM lost
  WHERE (SELECT true FROM usage_ledger l WHERE l.started_at = baton_entry_time(lost.id) AND l.id = lost.id LIMIT 1) IS NULL
  ON CONFLICT DO NOTHING
  RETURNING id
)
SELECT (SELECT count(*) FROM lost) AS ended, (SELECT count(*) FROM added) AS lost

-- name: forget_writers
DELETE FROM usage_writers w
WHERE seen_at < now() - %(lost_after)s AND NOT EXISTS (SELECT FROM usage_openings o WHERE o.ingress = w.ingress)

-- name: missing_partitions
-- The months without a partition: this one and the next ones, and past ones whose rows lie in the default partition
SELECT month AT TIME ZONE 'UTC' AS month
FROM (
  SELECT date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => ahead) AS month
  FROM generate_series(0, %(ahead)s) AS ahead
) AS next
WHERE to_regclass('usage_ledger_' || to_char(month, 'YYYY_MM')) IS NULL
UNION (
  SELECT DISTINCT date_trunc('month', started_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' FROM usage_ledger_default
  WHERE started_at < now()
  ORDER BY 1 LIMIT %(strays)s)
ORDER BY month

-- name: make_partition_of
SELECT baton_make_usage_partition(%(month)s) AS made

-- name: old_partitions
SELECT baton_old_usage_partitions(now() - %(keep)s) AS name

-- name: drop_partition
SELECT baton_drop_usage_partition(%(name)s, now() - %(keep)s) AS dropped

-- name: drop_day_sums
DELETE FROM usage_day_sums WHERE (tenant_id, kind, scope_id, day) IN (
  SELECT tenant_id, kind, scope_id, day FROM usage_day_sums
  WHERE day < (now() AT TIME ZONE 'UTC')::date - %(keep_days)s::int LIMIT %(limit)s)

-- name: alone
SELECT pg_try_advisory_xact_lock(%(lock)s) AS alone

-- name: hold_sums
-- Waits until no sum runs, and keeps further ones waiting
SELECT pg_advisory_xact_lock(%(lock)s)

-- name: begin_sum
SELECT pg_advisory_xact_lock_shared(%(lock)s)

-- name: identity
SELECT id::text FROM usage_ledger_identity

-- name: usage
-- `after`: the group in the first bucket after which the results begin. NULL: with the first one
SELECT * FROM (
SELECT (floor(extract(epoch FROM started_at) / %(width)s) * %(width)s)::bigint AS bucket,
  CASE WHEN 'tenant_id' = ANY (%(by)s) THEN tenant_id END AS tenant_id,
  CASE WHEN 'project_id' = ANY (%(by)s) THEN project_id END AS project_id,
  CASE WHEN 'user_id' = ANY (%(by)s) THEN end_user END AS user_id,
  CASE WHEN 'api_key_id' = ANY (%(by)s) THEN key_id END AS api_key_id,
  CASE WHEN 'model' = ANY (%(by)s) THEN model END AS model,
  CASE WHEN 'currency' = ANY (%(by)s) THEN currency END AS currency,
  coalesce(sum(prompt_tokens) FILTER (WHERE outcome <> 'lost'), 0)::bigint AS prompt_tokens,
  coalesce(sum(cached_tokens) FILTER (WHERE outcome <> 'lost'), 0)::bigint AS cached_tokens,
  coalesce(sum(generated_tokens) FILTER (WHERE outcome <> 'lost'), 0)::bigint AS generated_tokens,
  coalesce(sum(reasoning_tokens) FILTER (WHERE outcome <> 'lost'), 0)::bigint AS reasoning_tokens,
  coalesce(sum(cost_micros) FILTER (WHERE outcome <> 'lost'), 0)::bigint AS cost_micros,
  count(*) FILTER (WHERE is_last AND outcome NOT IN ('lost', 'rejected')) AS requests,
  count(*) FILTER (WHERE outcome = 'lost') AS lost
FROM usage_ledger
WHERE (%(tenant)s = '*' OR tenant_id = %(tenant)s)
  AND started_at >= to_timestamp(%(start)s) AND started_at < to_timestamp(%(end)s)
  AND (%(project_ids)s::text[] IS NULL OR project_id = ANY (%(project_ids)s))
  AND (%(user_ids)s::text[] IS NULL OR end_user = ANY (%(user_ids)s))
  AND (%(api_key_ids)s::text[] IS NULL OR key_id = ANY (%(api_key_ids)s))
  AND (%(models)s::text[] IS NULL OR model = ANY (%(models)s))
  AND (%(tenant_ids)s::text[] IS NULL OR tenant_id = ANY (%(tenant_ids)s))
GROUP BY 1, 2, 3, 4, 5, 6, 7
) AS sums
WHERE %(after)s::text[] IS NULL OR bucket > %(first)s OR ARRAY[
    coalesce(tenant_id, ''), coalesce(project_id, ''), coalesce(user_id, ''), coalesce(api_key_id, ''),
    coalesce(model, ''), coalesce(currency, '')] > %(after)s::text[]
ORDER BY 1, 2, 3, 4, 5, 6, 7
LIMIT %(limit)s

-- name: of_workers
-- What each worker's engine has counted, as far as the ledger knows. `open_ended`: attempts that may have counted more
SELECT worker, sum(tokens)::bigint AS tokens, count(*) FILTER (WHERE NOT is_complete) AS open_ended
FROM (
  SELECT worker, worker_tokens AS tokens, is_complete FROM usage_ledger
  WHERE started_at >= to_timestamp(%(since)s) AND worker = ANY (%(workers)s)
  UNION ALL
  SELECT prefill_worker, prefill_tokens, is_complete FROM usage_ledger
  WHERE started_at >= to_timestamp(%(since)s) AND prefill_worker = ANY (%(workers)s)
) AS of_worker
GROUP BY worker

-- name: unsettled
-- Requests that run, and records that live ingress processes have not written yet
SELECT (SELECT count(*) FROM usage_openings) AS running,
  (SELECT coalesce(sum(waiting), 0)::bigint FROM usage_writers WHERE seen_at > now() - %(lost_after)s) AS waiting

-- name: end_within
-- Each further statement of the transaction
SELECT set_config('statement_timeout', %(milliseconds)s, true)

-- name: spent
-- What the ledger has for each of the scopes of one kind of a tenant. Usage belongs to the time of the arrival. A tenant's
-- budget is not charged for what Baton asks by itself, which has no HTTP request. A key has the usage of all keys of its
-- lineage. `open_tokens`, `open_cost`: the part of requests with several prompts of which some still run
SELECT CASE %(kind)s WHEN 'tenant' THEN '' WHEN 'project' THEN u.project_id WHEN 'key' THEN coalesce(k.lineage, u.key_id)
    WHEN 'end_user' THEN u.end_user WHEN 'model' THEN u.model END AS scope_id,
  sum(u.prompt_tokens + u.generated_tokens)::bigint AS tokens, sum(u.cost_micros)::bigint AS cost_micros,
  coalesce(sum(u.prompt_tokens + u.generated_tokens) FILTER (WHERE o.http_request IS NOT NULL), 0)::bigint AS open_tokens,
  coalesce(sum(u.cost_micros) FILTER (WHERE o.http_request IS NOT NULL), 0)::bigint AS open_cost
FROM usage_ledger u
LEFT JOIN api_keys k ON %(kind)s = 'key' AND k.tenant_id = u.tenant_id AND k.id = u.key_id
LEFT JOIN (SELECT DISTINCT http_request FROM usage_openings WHERE tenant_id = %(tenant)s) o
  ON o.http_request = u.http_request
WHERE u.started_at >= to_timestamp(%(start)s) AND u.started_at < to_timestamp(%(end)s) AND u.outcome <> 'lost'
  AND u.http_request <> '' AND u.tenant_id = %(tenant)s
GROUP BY 1

-- name: spent_by
-- As `spent`, for one scope, from the sums of whole days. The end keeps out what an ingress whose clock is ahead has written
-- for a later day
SELECT coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(cost_micros), 0)::bigint AS cost_micros
FROM usage_day_sums
WHERE tenant_id = %(tenant)s AND kind = %(kind)s
  AND scope_id = ANY (ARRAY(
    SELECT %(scope_id)s
    UNION SELECT id FROM api_keys WHERE %(kind)s = 'key' AND tenant_id = %(tenant)s AND lineage = %(scope_id)s))
  AND day >= (to_timestamp(%(start)s) AT TIME ZONE 'UTC')::date AND day < to_timestamp(%(end)s) AT TIME ZONE 'UTC'

-- name: unpublished
-- `id` is NULL where the retention has dropped the row of the ledger
SELECT o.number, o.tenant_id, l.project_id, l.key_id, l.end_user, l.model, l.started_at, l.id::text, l.attempt, l.is_last,
  l.request_id, l.http_request, l.outcome, l.prompt_tokens, l.cached_tokens, l.generated_tokens, l.reasoning_tokens,
  l.price_version, l.currency, l.cost_micros
FROM (SELECT * FROM usage_outbox ORDER BY number LIMIT %(limit)s) o
LEFT JOIN LATERAL (
  SELECT * FROM usage_ledger r WHERE r.started_at = o.started_at AND r.id = o.id AND r.attempt = o.attempt LIMIT 1) l ON true
ORDER BY o.number

-- name: published
DELETE FROM usage_outbox WHERE number = ANY (%(numbers)s)

-- name: trim_outbox
-- Drops the oldest entries beyond `most`. Returns their number
WITH dropped AS (
  DELETE FROM usage_outbox WHERE number <= (
    SELECT number FROM usage_outbox ORDER BY number DESC OFFSET %(most)s LIMIT 1)
  RETURNING 1
)
SELECT count(*) AS dropped FROM dropped
