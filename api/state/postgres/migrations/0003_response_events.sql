-- The events of responses, which are stored before clients see them.

CREATE TABLE response_events (
  tenant_id    text NOT NULL,
  response_id  text NOT NULL,
  first_number int NOT NULL,
  last_number  int NOT NULL,
  -- As JSON, one per line
  events       bytea NOT NULL,
  key_version  int NOT NULL,
  PRIMARY KEY (tenant_id, response_id, first_number),
  FOREIGN KEY (tenant_id, response_id) REFERENCES responses (tenant_id, id) ON DELETE CASCADE
);

ALTER TABLE responses
  DROP COLUMN is_orphan,
  -- The number of the last event in response_events
  ADD COLUMN last_number int NOT NULL DEFAULT -1,
  ADD COLUMN is_background boolean NOT NULL DEFAULT false,
  -- A client has cancelled the response, and the ingress that generates it must stop
  ADD COLUMN is_cancelled boolean NOT NULL DEFAULT false,
  -- The request of the client, without the input
  ADD COLUMN asked bytea,
  -- The events are not deleted yet
  ADD COLUMN has_events boolean NOT NULL DEFAULT true,
  -- For a turn that replaces another one: next_seq of the conversation at that time
  ADD COLUMN supersedes_at bigint;
CREATE INDEX responses_with_events ON responses (finished_at) WHERE finished_at IS NOT NULL AND has_events;

-- Of an item that has left its conversation with a replaced turn: next_seq of the conversation at that time
ALTER TABLE items ADD COLUMN superseded_at bigint;

ALTER TABLE response_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE response_events FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON response_events
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));
