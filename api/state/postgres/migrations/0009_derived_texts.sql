-- Texts that were derived from other texts do not outlive them.

-- The items that a title was made from; NULL for a title that a client has set
ALTER TABLE conversations ADD COLUMN title_of text[];

-- It is not known which of the existing titles were made: all of them count as made from the first message of the user and
-- the first message of the assistant
ALTER TABLE conversations NO FORCE ROW LEVEL SECURITY;
UPDATE conversations c SET title_of = ARRAY(
  SELECT DISTINCT ON (i.role) i.id FROM items i
  WHERE i.tenant_id = c.tenant_id AND i.conversation_id = c.id AND i.type = 'message' AND i.role IN ('user', 'assistant')
  ORDER BY i.role, i.seq)
WHERE title IS NOT NULL;
ALTER TABLE conversations FORCE ROW LEVEL SECURITY;

-- Summaries in responses that follow a deleted response may have parts of it: they are deleted with it
CREATE INDEX responses_that_follow ON responses (tenant_id, previous_response_id) WHERE previous_response_id IS NOT NULL;

CREATE FUNCTION baton_responses_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  WITH RECURSIVE followers AS (
    SELECT r.tenant_id, r.id FROM responses r JOIN gone g ON r.tenant_id = g.tenant_id AND r.previous_response_id = g.id
    UNION
    SELECT r.tenant_id, r.id FROM responses r JOIN followers f ON r.tenant_id = f.tenant_id AND r.previous_response_id = f.id
  )
  DELETE FROM items i USING followers f WHERE i.tenant_id = f.tenant_id AND i.response_id = f.id AND i.covers IS NOT NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER responses_gone AFTER DELETE ON responses REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION baton_responses_gone();
