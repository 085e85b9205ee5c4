-- The bytes that are stored for each tenant, the begin of each transaction, and tenants that are being erased.

ALTER TABLE tenants ADD COLUMN erasing_since timestamptz;

-- The bytes that each statement has added to a tenant, or removed. Each statement adds a row, so that no two transactions
-- wait for each other; a job adds the rows up. Their sum is the tenant's bytes at any moment
CREATE TABLE tenant_bytes (
  tenant_id text NOT NULL,
  bytes     bigint NOT NULL
);
CREATE INDEX tenant_bytes_of_tenant ON tenant_bytes (tenant_id);
ALTER TABLE tenant_bytes ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_bytes FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON tenant_bytes
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));

-- Begins a transaction of a tenant. Unlike in a plain statement, each query here sees what was committed while the query
-- before it has waited. `lock_number`: a lock that one transaction holds at a time. `adds`: the bytes that the transaction
-- is to store; `most`: the quota; `near`: the distance to the quota from which one transaction stores at a time. An erasure
-- or the destruction of a key takes the lock of the tenant exclusively, so it waits for every transaction that has begun.
CREATE FUNCTION baton_enter(tenant text, lock_number bigint, adds bigint, most bigint, near bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  stored bigint;
BEGIN
  PERFORM set_config('app.tenant_id', tenant, true);
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('baton tenant ' || tenant, 0));
  IF EXISTS (SELECT FROM tenants WHERE id = tenant AND erasing_since IS NOT NULL) THEN
    RETURN 'erased';
  END IF;
  IF lock_number IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock(lock_number);
  END IF;
  IF most IS NOT NULL THEN
    SELECT coalesce(sum(b.bytes), 0) INTO stored FROM tenant_bytes b WHERE b.tenant_id = tenant;
    IF stored + adds > most - near THEN
      PERFORM pg_advisory_xact_lock(hashtextextended('baton quota ' || tenant, 0));
      SELECT coalesce(sum(b.bytes), 0) INTO stored FROM tenant_bytes b WHERE b.tenant_id = tenant;
    END IF;
    IF stored + adds > most THEN
      RETURN 'full';
    END IF;
  END IF;
  RETURN 'open';
END $$;

-- The bytes that a row counts beside its texts: the row itself, and its entries in indexes
CREATE FUNCTION baton_row_bytes() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 500::bigint';

-- Items. Their bytes count for their conversation, too: reserve_seqs, which locks the conversation, adds them
ALTER TABLE conversations ADD COLUMN bytes bigint NOT NULL DEFAULT 0;

CREATE FUNCTION baton_items_added() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tenant_bytes (tenant_id, bytes)
  SELECT tenant_id, sum(octet_length(body) + baton_row_bytes()) FROM added GROUP BY tenant_id;
  RETURN NULL;
END $$;
CREATE TRIGGER items_added AFTER INSERT ON items REFERENCING NEW TABLE AS added
  FOR EACH STATEMENT EXECUTE FUNCTION baton_items_added();

CREATE FUNCTION baton_items_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tenant_bytes (tenant_id, bytes)
  SELECT tenant_id, -sum(octet_length(body) + baton_row_bytes()) FROM gone GROUP BY tenant_id;
  UPDATE conversations c SET bytes = c.bytes - of_conversation.bytes
  FROM (
    SELECT tenant_id, conversation_id, sum(octet_length(body)) AS bytes FROM gone
    WHERE conversation_id IS NOT NULL GROUP BY tenant_id, conversation_id
  ) AS of_conversation
  WHERE c.tenant_id = of_conversation.tenant_id AND c.id = of_conversation.conversation_id;
  RETURN NULL;
END $$;
CREATE TRIGGER items_gone AFTER DELETE ON items REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION baton_items_gone();

-- All other tables: a function for each table returns the bytes of a row. The events of a response count when the response
-- is over, all together (event_bytes). While it runs they have at most state.max_response_bytes
ALTER TABLE responses ADD COLUMN event_bytes bigint NOT NULL DEFAULT 0;

CREATE FUNCTION baton_bytes(r responses) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + octet_length(r.body) + coalesce(octet_length(r.asked), 0)
    + coalesce(octet_length(r.outcome), 0) + r.event_bytes
$$;
CREATE FUNCTION baton_bytes(c chat_completions) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + octet_length(c.body) + octet_length(c.messages) + octet_length(c.metadata::text)
$$;
CREATE FUNCTION baton_bytes(c conversations) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + octet_length(c.metadata::text) + coalesce(octet_length(c.title), 0)
$$;
CREATE FUNCTION baton_bytes(f feedback) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + coalesce(octet_length(f.comment), 0) + octet_length(f.labels::text)
$$;

CREATE FUNCTION baton_rows_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  change bigint;
BEGIN
  change := CASE TG_OP WHEN 'DELETE' THEN 0 ELSE baton_bytes(NEW) END
    - CASE TG_OP WHEN 'INSERT' THEN 0 ELSE baton_bytes(OLD) END;
  IF change <> 0 THEN
    INSERT INTO tenant_bytes (tenant_id, bytes)
    VALUES (CASE TG_OP WHEN 'DELETE' THEN OLD.tenant_id ELSE NEW.tenant_id END, change);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER responses_changed AFTER INSERT OR DELETE ON responses
  FOR EACH ROW EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER responses_ended AFTER UPDATE ON responses
  FOR EACH ROW
  WHEN ((OLD.event_bytes, octet_length(OLD.outcome)) IS DISTINCT FROM (NEW.event_bytes, octet_length(NEW.outcome)))
  EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER chat_completions_changed AFTER INSERT OR DELETE ON chat_completions
  FOR EACH ROW EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER chat_completions_updated AFTER UPDATE ON chat_completions
  FOR EACH ROW WHEN (OLD.metadata IS DISTINCT FROM NEW.metadata) EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER conversations_changed AFTER INSERT OR DELETE ON conversations
  FOR EACH ROW EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER conversations_updated AFTER UPDATE ON conversations
  FOR EACH ROW
  WHEN (OLD.metadata IS DISTINCT FROM NEW.metadata OR octet_length(OLD.title) IS DISTINCT FROM octet_length(NEW.title))
  EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER feedback_changed AFTER INSERT OR UPDATE OR DELETE ON feedback
  FOR EACH ROW EXECUTE FUNCTION baton_rows_changed();

-- The rows that exist already. The policy forbids writes in the name of all tenants
ALTER TABLE conversations NO FORCE ROW LEVEL SECURITY;
INSERT INTO tenant_bytes (tenant_id, bytes)
SELECT tenant_id, sum(bytes) FROM (
  SELECT tenant_id, octet_length(body) + baton_row_bytes() AS bytes FROM items
  UNION ALL SELECT tenant_id, baton_bytes(responses) FROM responses
  UNION ALL SELECT tenant_id, baton_bytes(chat_completions) FROM chat_completions
  UNION ALL SELECT tenant_id, baton_bytes(conversations) FROM conversations
  UNION ALL SELECT tenant_id, baton_bytes(feedback) FROM feedback
) AS all_rows GROUP BY tenant_id;
UPDATE conversations c SET bytes = of_conversation.bytes
FROM (
  SELECT tenant_id, conversation_id, sum(octet_length(body)) AS bytes FROM items
  WHERE conversation_id IS NOT NULL GROUP BY tenant_id, conversation_id
) AS of_conversation
WHERE c.tenant_id = of_conversation.tenant_id AND c.id = of_conversation.conversation_id;
ALTER TABLE conversations FORCE ROW LEVEL SECURITY;
