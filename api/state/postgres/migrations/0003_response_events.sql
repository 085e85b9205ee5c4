-- What a response has told, event by event, from before its clients see it.

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
  -- Of the last event above
  ADD COLUMN last_number int NOT NULL DEFAULT -1,
  ADD COLUMN is_background boolean NOT NULL DEFAULT false,
  -- Whoever generates it is to stop
  ADD COLUMN is_cancelled boolean NOT NULL DEFAULT false,
  -- What its client asked for, as it said it, without the input
  ADD COLUMN asked bytea,
  -- Its events are kept
  ADD COLUMN has_events boolean NOT NULL DEFAULT true,
  -- It is generated anew: the conversation's next_seq when it superseded the turn before
  ADD COLUMN supersedes_at bigint;
CREATE INDEX responses_with_events ON responses (finished_at) WHERE finished_at IS NOT NULL AND has_events;

-- A turn that is generated anew leaves the conversation, with all that followed it, where next_seq was this
ALTER TABLE items ADD COLUMN superseded_at bigint;

ALTER TABLE response_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE response_events FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON response_events
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));
