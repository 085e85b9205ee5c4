-- The ledger of usage: what each attempt of each request took from engines, and what it costs.
--
-- usage_ledger is only appended to. The id of an entry has its time in it (UUID version 7), and the partition column is
-- computed from the id alone. So (started_at, id, attempt) is as unique as (id, attempt), and a row that is written twice
-- meets itself.

CREATE FUNCTION baton_entry_time(entry uuid) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT to_timestamp(('x' || substr(replace(entry::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0::float8)
$$;

CREATE TABLE usage_ledger (
  -- The arrival of the request at the ingress
  started_at         timestamptz NOT NULL,
  id                 uuid NOT NULL,
  -- From 1 on. 0 for a request that was never placed, and for one that was lost
  attempt            int NOT NULL,
  -- The last attempt of its request
  is_last            boolean NOT NULL,
  tenant_id          text NOT NULL,
  project_id         text NOT NULL,
  key_id             text NOT NULL,
  end_user           text NOT NULL,
  model              text NOT NULL,
  request_id         text NOT NULL,
  http_request       text NOT NULL,
  slo_class          text NOT NULL,
  path               text NOT NULL,
  -- How the request ended: finished, aborted, rejected, failed or lost; and how the attempt ended
  outcome            text NOT NULL,
  ending             text NOT NULL,
  -- What the client is charged for. cached_tokens are a part of prompt_tokens, reasoning_tokens of generated_tokens
  prompt_tokens      bigint NOT NULL,
  cached_tokens      bigint NOT NULL,
  generated_tokens   bigint NOT NULL,
  reasoning_tokens   bigint NOT NULL,
  -- What the engines of the two workers counted, as far as it reached the ingress
  worker             text NOT NULL,
  worker_tokens      bigint NOT NULL,
  prefill_worker     text NOT NULL,
  prefill_tokens     bigint NOT NULL,
  -- The engines have counted nothing else for this attempt
  is_complete        boolean NOT NULL,
  -- Seconds: from the arrival to the begin of the attempt, to the first token, and to the end of the attempt
  began_s            double precision NOT NULL,
  ttft_s             double precision,
  duration_s         double precision NOT NULL,
  price_version      text NOT NULL,
  currency           text NOT NULL,
  -- In millionths of the currency
  cost_micros        bigint NOT NULL,
  recorded_at        timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (started_at, id, attempt),
  CHECK (started_at = baton_entry_time(id)),
  CHECK (attempt >= 0),
  -- A connection whose tenant was never set has none, and must see no row
  CHECK (tenant_id <> '' AND tenant_id <> '*'),
  CHECK (0 <= cached_tokens AND cached_tokens <= prompt_tokens),
  CHECK (0 <= reasoning_tokens AND reasoning_tokens <= generated_tokens),
  CHECK (0 <= worker_tokens AND 0 <= prefill_tokens AND 0 <= cost_micros)
) PARTITION BY RANGE (started_at);
CREATE INDEX usage_ledger_of_tenant ON usage_ledger (tenant_id, started_at);

-- Requests that run. A row is deleted in the transaction that writes the rows of its request
CREATE TABLE usage_openings (
  id            uuid PRIMARY KEY,
  tenant_id     text NOT NULL,
  project_id    text NOT NULL,
  key_id        text NOT NULL,
  end_user      text NOT NULL,
  model         text NOT NULL,
  request_id    text NOT NULL,
  http_request  text NOT NULL,
  slo_class     text NOT NULL,
  prompt_tokens bigint NOT NULL,
  ingress       text NOT NULL,
  opened_at     timestamptz NOT NULL DEFAULT now(),
  -- What is allowed here can end as lost in the ledger
  CHECK (tenant_id <> '' AND tenant_id <> '*'),
  CHECK (prompt_tokens >= 0)
);
CREATE INDEX usage_openings_of_ingress ON usage_openings (ingress);

-- The ingress processes that write, when each was last heard of, and how many of its records are not written yet
CREATE TABLE usage_writers (
  ingress text PRIMARY KEY,
  seen_at timestamptz NOT NULL,
  waiting bigint NOT NULL
);

-- Rows that are to be published. The publisher deletes what it has published
CREATE TABLE usage_outbox (
  number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id  text NOT NULL,
  started_at timestamptz NOT NULL,
  id         uuid NOT NULL,
  attempt    int NOT NULL
);

ALTER TABLE usage_ledger ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_ledger FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON usage_ledger
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));
ALTER TABLE usage_openings ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_openings FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON usage_openings
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));
ALTER TABLE usage_outbox ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_outbox FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON usage_outbox
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));
-- No tenant has rows here
ALTER TABLE usage_writers ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_writers FORCE ROW LEVEL SECURITY;
CREATE POLICY jobs ON usage_writers
  USING (current_setting('app.tenant_id', true) = '*')
  WITH CHECK (current_setting('app.tenant_id', true) = '*');

-- What is recorded stays as it is. An erasure of a tenant removes the names of its end users, and nothing else
CREATE FUNCTION baton_usage_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF NEW.end_user = '' AND (to_jsonb(NEW) - 'end_user') = (to_jsonb(OLD) - 'end_user')
      AND EXISTS (SELECT FROM tenants WHERE id = OLD.tenant_id AND erasing_since IS NOT NULL)
    THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'rows of the usage ledger are never changed or deleted';
END $$;
CREATE TRIGGER usage_kept BEFORE UPDATE OR DELETE ON usage_ledger
  FOR EACH ROW EXECUTE FUNCTION baton_usage_kept();
CREATE TRIGGER usage_truncated BEFORE TRUNCATE ON usage_ledger
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();

-- A row whose month has no partition is kept here. A partition has no policy of its own, so nobody reads it directly
CREATE TABLE usage_ledger_default PARTITION OF usage_ledger DEFAULT;
ALTER TABLE usage_ledger_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_ledger_default FORCE ROW LEVEL SECURITY;
CREATE TRIGGER usage_truncated BEFORE TRUNCATE ON usage_ledger_default
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();

-- Makes the partition of the month that has this moment, by UTC, and moves the rows of the month there. False if it exists
CREATE FUNCTION baton_make_usage_partition(moment timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  month timestamp := date_trunc('month', moment AT TIME ZONE 'UTC');
  first timestamptz := month AT TIME ZONE 'UTC';
  after timestamptz := (month + interval '1 month') AT TIME ZONE 'UTC';
  name text := 'usage_ledger_' || to_char(month, 'YYYY_MM');
BEGIN
  IF to_regclass(name) IS NOT NULL THEN
    RETURN false;
  END IF;
  LOCK TABLE usage_ledger IN SHARE ROW EXCLUSIVE MODE;
  EXECUTE format('CREATE TABLE %I (LIKE usage_ledger INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
  IF EXISTS (SELECT FROM usage_ledger WHERE tableoid = 'usage_ledger_default'::regclass
    AND started_at >= first AND started_at < after)
  THEN
    ALTER TABLE usage_ledger_default DISABLE TRIGGER usage_kept;
    EXECUTE format(
      'WITH moved AS (DELETE FROM usage_ledger WHERE tableoid = ''usage_ledger_default''::regclass'
      ' AND started_at >= $1 AND started_at < $2 RETURNING *) INSERT INTO %I SELECT * FROM moved', name)
      USING first, after;
    ALTER TABLE usage_ledger_default ENABLE TRIGGER usage_kept;
  END IF;
  EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
  EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
  EXECUTE format('CREATE TRIGGER usage_truncated BEFORE TRUNCATE ON %I'
    ' FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated()', name);
  EXECUTE format('ALTER TABLE usage_ledger ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, first, after);
  RETURN true;
END $$;

-- Drops the partitions that have only rows from before this moment. Returns their names
CREATE FUNCTION baton_drop_usage_partitions(before timestamptz) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
  name text;
BEGIN
  FOR name IN
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'usage_ledger'::regclass AND relname ~ '^usage_ledger_[0-9]{4}_[0-9]{2}$'
      AND (to_date(right(relname, 7), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' <= before
    ORDER BY relname
  LOOP
    EXECUTE format('ALTER TABLE usage_ledger DETACH PARTITION %I', name);
    EXECUTE format('DROP TABLE %I', name);
    RETURN NEXT name;
  END LOOP;
END $$;

SELECT baton_make_usage_partition(now()), baton_make_usage_partition(now() + interval '1 month');
