-- The words of messages as keyed hashes, titles of conversations, and indexes for the retention.

-- One row for each message that can be found. Unlike the tables of texts, this table does not force row-level security on
-- its owner: PostgreSQL would not use the index then, because @@ is not leakproof. The table has only hashes, which are
-- keyed by tenant, and every query joins items, where row-level security is forced.
CREATE TABLE item_words (
  tenant_id text NOT NULL,
  item_id   text NOT NULL,
  -- The language of `words`. Empty: the message is not indexed
  language  text NOT NULL DEFAULT '',
  words     tsvector,
  PRIMARY KEY (tenant_id, item_id),
  FOREIGN KEY (tenant_id, item_id) REFERENCES items (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX item_words_words ON item_words USING gin (words) WHERE words IS NOT NULL;
CREATE INDEX item_words_language ON item_words (language);

ALTER TABLE item_words ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON item_words
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));

INSERT INTO item_words (tenant_id, item_id)
SELECT tenant_id, id FROM items
WHERE conversation_id IS NOT NULL AND type = 'message' AND role IN ('user', 'assistant');

ALTER TABLE conversations ADD COLUMN title bytea, ADD COLUMN title_key_version int;

CREATE INDEX conversations_by_age ON conversations (tenant_id, updated_at);
CREATE INDEX responses_alone_by_age ON responses (tenant_id, created_at) WHERE conversation_id IS NULL;
