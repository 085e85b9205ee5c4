-- The audit log of safety decisions, and appeals against them.
--
-- The events of a tenant are a hash chain (api/state/postgres/audit_chain.py). They are only appended. The retention
-- deletes the oldest ones: it first moves the anchor of the chain past them.

CREATE TABLE safety_chains (
  tenant_id       text PRIMARY KEY REFERENCES tenants (id),
  -- The key of the hashes, sealed
  chain_key       bytea NOT NULL,
  key_version     int NOT NULL,
  -- Unix time of the last erasure of the tenant; 0 for none
  begins_at       double precision NOT NULL,
  -- The newest event
  head_sequence   bigint NOT NULL,
  head_hash       bytea NOT NULL,
  -- The last event that the retention has deleted
  anchor_sequence bigint NOT NULL,
  anchor_hash     bytea NOT NULL,
  mac             bytea NOT NULL,
  CHECK (0 <= anchor_sequence AND anchor_sequence <= head_sequence)
);

CREATE TABLE safety_events (
  tenant_id      text NOT NULL REFERENCES safety_chains (tenant_id),
  sequence       bigint NOT NULL,
  id             text NOT NULL,
  request_id     text NOT NULL,
  at             double precision NOT NULL,
  direction      text NOT NULL,
  action         text NOT NULL,
  policy_version text NOT NULL,
  categories     text[] NOT NULL,
  -- json keeps the text as it is; jsonb would not, and the hash is of the text
  verdicts       json NOT NULL,
  text_mac       bytea,
  evidence       bytea,
  key_version    int,
  evidence_mac   bytea,
  hash           bytea NOT NULL,
  PRIMARY KEY (tenant_id, id),
  UNIQUE (tenant_id, sequence),
  CHECK ((evidence IS NULL) = (key_version IS NULL) AND (evidence IS NULL) = (evidence_mac IS NULL))
);
CREATE INDEX safety_events_of_action ON safety_events (tenant_id, action, sequence) WHERE action <> 'passed';
CREATE INDEX safety_events_of_request ON safety_events (tenant_id, request_id, sequence);
CREATE INDEX safety_events_sealed ON safety_events (tenant_id, key_version) WHERE key_version IS NOT NULL;

CREATE TABLE safety_appeals (
  tenant_id   text NOT NULL REFERENCES tenants (id),
  id          text NOT NULL,
  event_id    text NOT NULL,
  reason      bytea NOT NULL,
  status      text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'upheld', 'overturned')),
  reviewer    text,
  note        bytea,
  key_version int NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT now(),
  decided_at  timestamptz,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, event_id) REFERENCES safety_events (tenant_id, id) ON DELETE CASCADE,
  CHECK ((status = 'open') = (decided_at IS NULL) AND (status = 'open') = (reviewer IS NULL))
);
CREATE UNIQUE INDEX safety_appeals_one_open ON safety_appeals (tenant_id, event_id) WHERE status = 'open';
CREATE INDEX safety_appeals_of_event ON safety_appeals (tenant_id, event_id);
CREATE INDEX safety_appeals_list ON safety_appeals (tenant_id, created_at, id);

ALTER TABLE safety_chains ENABLE ROW LEVEL SECURITY;
ALTER TABLE safety_chains FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON safety_chains
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

ALTER TABLE safety_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE safety_events FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON safety_events
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

ALTER TABLE safety_appeals ENABLE ROW LEVEL SECURITY;
ALTER TABLE safety_appeals FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON safety_appeals
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

-- What is recorded stays as it is. These triggers stop mistakes; a person who owns the tables can drop them, and the
-- hashes show what was changed then

CREATE FUNCTION baton_safety_event_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- A rotation of keys seals evidence anew
  IF (to_jsonb(NEW) - 'evidence' - 'key_version') IS DISTINCT FROM (to_jsonb(OLD) - 'evidence' - 'key_version')
    OR NEW.evidence IS NULL
  THEN
    RAISE EXCEPTION 'safety events are never changed';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER safety_event_changed BEFORE UPDATE ON safety_events
  FOR EACH ROW EXECUTE FUNCTION baton_safety_event_changed();

CREATE FUNCTION baton_safety_events_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (
    SELECT FROM gone g
    WHERE NOT EXISTS (
        SELECT FROM safety_chains c WHERE c.tenant_id = g.tenant_id AND g.sequence <= c.anchor_sequence)
      AND NOT EXISTS (SELECT FROM tenants t WHERE t.id = g.tenant_id AND t.erasing_since IS NOT NULL))
  THEN
    RAISE EXCEPTION 'safety events after the anchor of their chain are never deleted';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER safety_events_gone AFTER DELETE ON safety_events REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION baton_safety_events_gone();

CREATE FUNCTION baton_safety_chain_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF NOT EXISTS (SELECT FROM tenants WHERE id = OLD.tenant_id AND erasing_since IS NOT NULL) THEN
      RAISE EXCEPTION 'the chain of safety events is deleted with its tenant alone';
    END IF;
    RETURN OLD;
  END IF;
  IF NEW.tenant_id <> OLD.tenant_id OR NEW.begins_at <> OLD.begins_at
    OR NEW.head_sequence < OLD.head_sequence OR NEW.anchor_sequence < OLD.anchor_sequence
  THEN
    RAISE EXCEPTION 'the chain of safety events never becomes shorter';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER safety_chain_changed BEFORE UPDATE OR DELETE ON safety_chains
  FOR EACH ROW EXECUTE FUNCTION baton_safety_chain_changed();

CREATE FUNCTION baton_never_truncated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is never truncated', TG_TABLE_NAME;
END $$;
CREATE TRIGGER safety_events_truncated BEFORE TRUNCATE ON safety_events
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();
CREATE TRIGGER safety_chains_truncated BEFORE TRUNCATE ON safety_chains
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();

-- Evidence and appeals count toward the quota. Events without evidence do not: the tenant cannot delete them
CREATE FUNCTION baton_bytes(e safety_events) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + octet_length(e.evidence)
$$;
CREATE FUNCTION baton_bytes(a safety_appeals) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + octet_length(a.reason) + coalesce(octet_length(a.note), 0)
$$;
CREATE TRIGGER safety_evidence_added AFTER INSERT OR UPDATE ON safety_events
  FOR EACH ROW WHEN (NEW.evidence IS NOT NULL) EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER safety_evidence_gone AFTER DELETE ON safety_events
  FOR EACH ROW WHEN (OLD.evidence IS NOT NULL) EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER safety_appeals_changed AFTER INSERT OR UPDATE OR DELETE ON safety_appeals
  FOR EACH ROW EXECUTE FUNCTION baton_rows_changed();
