-- What budgets have used by day, so that no row of the ledger is read when Redis has forgotten them.

-- A row for each key, project, end user and model of a tenant, and for the tenant itself (kind 'tenant', scope_id ''), which
-- has used something on this day of UTC
CREATE TABLE usage_day_sums (
  tenant_id   text NOT NULL,
  kind        text NOT NULL,
  scope_id    text NOT NULL,
  day         date NOT NULL,
  tokens      bigint NOT NULL,
  cost_micros bigint NOT NULL,
  PRIMARY KEY (tenant_id, kind, scope_id, day)
) WITH (fillfactor = 70);
CREATE INDEX usage_day_sums_of_day ON usage_day_sums (day);
ALTER TABLE usage_day_sums ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_day_sums FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON usage_day_sums
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));

-- Adds the rows of one INSERT. A row that was there is not among them, so each row counts once. All writers take the sums in
-- one order, after the rows of the ledger, so that none waits for another that waits for it
CREATE FUNCTION baton_add_usage_to_sums() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO usage_day_sums AS s (tenant_id, kind, scope_id, day, tokens, cost_micros)
  SELECT a.tenant_id, scope.kind, scope.id, (a.started_at AT TIME ZONE 'UTC')::date,
    sum(a.prompt_tokens + a.generated_tokens), sum(a.cost_micros)
  FROM added a
  CROSS JOIN LATERAL (VALUES ('tenant', ''), ('project', a.project_id), ('key', a.key_id), ('end_user', a.end_user),
    ('model', a.model)) AS scope (kind, id)
  -- What Baton asks for by itself has no HTTP request, and is no usage of a budget
  WHERE a.outcome <> 'lost' AND a.http_request <> '' AND (scope.kind = 'tenant' OR scope.id <> '')
    AND (a.prompt_tokens > 0 OR a.generated_tokens > 0 OR a.cost_micros > 0)
  GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (tenant_id, kind, scope_id, day)
  DO UPDATE SET tokens = s.tokens + excluded.tokens, cost_micros = s.cost_micros + excluded.cost_micros;
  RETURN NULL;
END $$;
-- On the parent: the job that moves rows into a partition of their own inserts into the partition, and adds nothing
CREATE TRIGGER usage_summed AFTER INSERT ON usage_ledger
  REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION baton_add_usage_to_sums();

-- What was there before, of the budgets that still run. Writers wait for the trigger, so no row is left out or counted twice
INSERT INTO usage_day_sums (tenant_id, kind, scope_id, day, tokens, cost_micros)
SELECT a.tenant_id, scope.kind, scope.id, a.day, sum(a.tokens), sum(a.cost_micros)
FROM (
  SELECT tenant_id, project_id, key_id, end_user, model, (started_at AT TIME ZONE 'UTC')::date AS day,
    sum(prompt_tokens + generated_tokens) AS tokens, sum(cost_micros) AS cost_micros
  FROM usage_ledger
  WHERE outcome <> 'lost' AND http_request <> ''
    AND started_at >= date_trunc('month', (now() - interval '1 day') AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
  GROUP BY 1, 2, 3, 4, 5, 6
) a
CROSS JOIN LATERAL (VALUES ('tenant', ''), ('project', a.project_id), ('key', a.key_id), ('end_user', a.end_user),
  ('model', a.model)) AS scope (kind, id)
WHERE scope.kind = 'tenant' OR scope.id <> ''
GROUP BY 1, 2, 3, 4
HAVING sum(a.tokens) > 0 OR sum(a.cost_micros) > 0;
