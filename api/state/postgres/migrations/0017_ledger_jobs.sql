-- What the jobs of the ledger need: which database this is, and partitions that are dropped by when their rows were written.

-- Which ledger this is. Spools of usage on the disks of ingresses have it, so that they are replayed into this ledger alone
CREATE TABLE usage_ledger_identity (
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
  id      uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO usage_ledger_identity DEFAULT VALUES;
ALTER TABLE usage_ledger_identity ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_ledger_identity FORCE ROW LEVEL SECURITY;
CREATE POLICY jobs ON usage_ledger_identity USING (current_setting('app.tenant_id', true) = '*');

-- Rows lie in the order in which they were written, so an index of block ranges is enough, and costs a write nearly nothing
CREATE INDEX usage_ledger_recorded ON usage_ledger USING brin (recorded_at) WITH (autosummarize = on);

-- Jobs look for rows that lie in the default partition. Through the parent they would have to read all partitions
CREATE POLICY jobs ON usage_ledger_default USING (current_setting('app.tenant_id', true) = '*');

-- The partitions whose months ended before this moment. A row that an ingress with a wrong clock wrote later keeps its
-- partition, however old the row claims to be
CREATE FUNCTION baton_old_usage_partitions(before timestamptz) RETURNS SETOF text LANGUAGE plpgsql STABLE AS $$
DECLARE
  name text;
  first timestamptz;
  after timestamptz;
BEGIN
  FOR name IN
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'usage_ledger'::regclass AND relname ~ '^usage_ledger_[0-9]{4}_[0-9]{2}$'
    ORDER BY relname
  LOOP
    first := to_date(right(name, 7), 'YYYY_MM')::timestamp AT TIME ZONE 'UTC';
    after := (to_date(right(name, 7), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC';
    IF after <= before AND NOT EXISTS (
      SELECT FROM usage_ledger WHERE started_at >= first AND started_at < after AND recorded_at >= before)
    THEN
      RETURN NEXT name;
    END IF;
  END LOOP;
END $$;

DROP FUNCTION baton_drop_usage_partitions(timestamptz);

-- Drops one of these partitions. False if a row has come to it meanwhile, or if another process was faster
CREATE FUNCTION baton_drop_usage_partition(name text, before timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  LOCK TABLE usage_ledger IN ACCESS EXCLUSIVE MODE;
  IF NOT EXISTS (SELECT FROM baton_old_usage_partitions(before) AS old WHERE old = name) THEN
    RETURN false;
  END IF;
  EXECUTE format('ALTER TABLE usage_ledger DETACH PARTITION %I', name);
  EXECUTE format('DROP TABLE %I', name);
  RETURN true;
END $$;
