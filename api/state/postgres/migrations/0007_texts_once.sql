-- Each text is stored once: `body` is the response as it was created, and stays so.

-- The difference between the response at its end and `body`. NULL while the response runs, and for a response that was over
-- before this column existed: its `body` is the response at its end
ALTER TABLE responses ADD COLUMN outcome bytea;

-- Sealed bytes cannot be compressed: PostgreSQL need not try
ALTER TABLE responses ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN asked SET STORAGE EXTERNAL,
  ALTER COLUMN outcome SET STORAGE EXTERNAL;
ALTER TABLE items ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE response_events ALTER COLUMN events SET STORAGE EXTERNAL;
ALTER TABLE chat_completions ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN messages SET STORAGE EXTERNAL;
