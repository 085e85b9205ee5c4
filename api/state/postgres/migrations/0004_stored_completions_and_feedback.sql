-- Stored chat completions, and the feedback of users on responses and chat completions.

CREATE TABLE chat_completions (
  tenant_id   text NOT NULL REFERENCES tenants (id),
  id          text NOT NULL,
  model       text NOT NULL,
  end_user    text,
  metadata    jsonb NOT NULL DEFAULT '{}',
  -- The completion without its metadata
  body        bytea NOT NULL,
  -- The messages of the request
  messages    bytea NOT NULL,
  key_version int NOT NULL,
  -- The time of the request; the row may have been written later
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

CREATE TABLE feedback (
  tenant_id          text NOT NULL REFERENCES tenants (id),
  id                 text NOT NULL,
  -- The subject of the feedback: one of the two
  response_id        text,
  chat_completion_id text,
  item_id            text,
  end_user           text,
  rating             smallint NOT NULL CHECK (rating IN (-1, 1)),
  labels             text[] NOT NULL DEFAULT '{}',
  comment            bytea,
  key_version        int NOT NULL,
  created_at         timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, response_id) REFERENCES responses (tenant_id, id) ON DELETE CASCADE,
  FOREIGN KEY (tenant_id, chat_completion_id) REFERENCES chat_completions (tenant_id, id) ON DELETE CASCADE,
  CHECK (num_nonnulls(response_id, chat_completion_id) = 1)
);
CREATE UNIQUE INDEX feedback_one_of_each_user
  ON feedback (tenant_id, response_id, chat_completion_id, end_user) NULLS NOT DISTINCT;
CREATE INDEX feedback_of_chat_completion ON feedback (tenant_id, chat_completion_id) WHERE chat_completion_id IS NOT NULL;
CREATE INDEX feedback_list ON feedback (tenant_id, created_at, id);

ALTER TABLE feedback ENABLE ROW LEVEL SECURITY;
ALTER TABLE feedback FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON feedback
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));
