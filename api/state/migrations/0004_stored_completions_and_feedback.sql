-- Chat completions that clients have asked to be stored, and what users think of responses and of them.

CREATE TABLE chat_completions (
  tenant_id   text NOT NULL REFERENCES tenants (id),
  id          text NOT NULL,
  model       text NOT NULL,
  end_user    text,
  metadata    jsonb NOT NULL DEFAULT '{}',
  -- The completion without its metadata
  body        bytea NOT NULL,
  -- What it answers
  messages    bytea NOT NULL,
  key_version int NOT NULL,
  -- When it was asked for; it may have been written later
  created_at  timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX chat_completions_list ON chat_completions (tenant_id, created_at, id);
CREATE INDEX chat_completions_metadata ON chat_completions USING gin (metadata jsonb_path_ops);

ALTER TABLE chat_completions ENABLE ROW LEVEL SECURITY;
ALTER TABLE chat_completions FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON chat_completions
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));
