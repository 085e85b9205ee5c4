-- Keys that are destroyed, and tenants that are erased.

-- Replicas look for keys that were destroyed since their last look
CREATE INDEX tenant_keys_destroyed ON tenant_keys (destroyed_at) WHERE destroyed_at IS NOT NULL;

-- The end of the erasure. For a while after it nothing is stored for the tenant: a replica may still have writes of it
ALTER TABLE tenants ADD COLUMN erased_at timestamptz;
CREATE INDEX tenants_erased ON tenants (erased_at) WHERE erased_at IS NOT NULL;
DROP POLICY own ON tenants;
CREATE POLICY own ON tenants
  USING (current_setting('app.tenant_id', true) IN (id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (id, '*'));

-- A text that is sealed anew can be longer
CREATE FUNCTION baton_item_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tenant_bytes (tenant_id, bytes) VALUES (NEW.tenant_id, octet_length(NEW.body) - octet_length(OLD.body));
  UPDATE conversations SET bytes = bytes + octet_length(NEW.body) - octet_length(OLD.body)
  WHERE tenant_id = NEW.tenant_id AND id = NEW.conversation_id;
  RETURN NULL;
END $$;
CREATE TRIGGER item_changed AFTER UPDATE OF body ON items
  FOR EACH ROW WHEN (octet_length(OLD.body) <> octet_length(NEW.body)) EXECUTE FUNCTION baton_item_changed();
CREATE TRIGGER responses_resealed AFTER UPDATE OF body ON responses
  FOR EACH ROW
  WHEN ((OLD.event_bytes, octet_length(OLD.outcome)) IS NOT DISTINCT FROM (NEW.event_bytes, octet_length(NEW.outcome)))
  EXECUTE FUNCTION baton_rows_changed();
CREATE TRIGGER chat_completions_resealed AFTER UPDATE OF body ON chat_completions
  FOR EACH ROW EXECUTE FUNCTION baton_rows_changed();
