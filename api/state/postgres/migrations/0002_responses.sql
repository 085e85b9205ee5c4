-- Responses. Each is one turn, with its input items and its output items.
--
-- An item belongs to a conversation (seq is its place there), to a response (position), or to both.

CREATE TABLE responses (
  tenant_id            text NOT NULL REFERENCES tenants (id),
  id                   text NOT NULL,
  conversation_id      text,
  previous_response_id text,
  status               text NOT NULL
    CHECK (status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')),
  -- The response object without its output
  body                 bytea NOT NULL,
  key_version          int NOT NULL,
  -- The generation claim: the ingress that generates the response renews it. After this time the response is orphaned
  lease_until          timestamptz NOT NULL,
  -- Ended because the generation claim ran out. If the ingress lives after all, its end of the response replaces this one
  is_orphan            boolean NOT NULL DEFAULT false,
  created_at           timestamptz NOT NULL DEFAULT now(),
  finished_at          timestamptz,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, conversation_id) REFERENCES conversations (tenant_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX responses_one_at_a_time ON responses (tenant_id, conversation_id)
  WHERE status IN ('queued', 'in_progress') AND conversation_id IS NOT NULL;
CREATE INDEX responses_orphaned ON responses (lease_until) WHERE status IN ('queued', 'in_progress');
CREATE INDEX responses_of_conversation ON responses (tenant_id, conversation_id) WHERE conversation_id IS NOT NULL;

ALTER TABLE responses ENABLE ROW LEVEL SECURITY;
ALTER TABLE responses FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON responses
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));

ALTER TABLE items
  ALTER COLUMN conversation_id DROP NOT NULL,
  ALTER COLUMN seq DROP NOT NULL,
  ADD COLUMN response_id text,
  ADD COLUMN position int,
  ADD COLUMN is_output boolean NOT NULL DEFAULT false,
  ADD FOREIGN KEY (tenant_id, response_id) REFERENCES responses (tenant_id, id) ON DELETE SET NULL (response_id),
  ADD CHECK ((conversation_id IS NULL) = (seq IS NULL)),
  ADD CHECK (conversation_id IS NOT NULL OR response_id IS NOT NULL);
CREATE INDEX items_of_response ON items (tenant_id, response_id, position) WHERE response_id IS NOT NULL;
