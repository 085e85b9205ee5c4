-- Each text is stored once: `body` is the response as it was created, and stays so.

-- What the response had become when it was over, where that differs; NULL while it runs, and for those that were over
-- before there was this column: their `body` is as they ended
ALTER TABLE responses ADD COLUMN outcome bytea;

-- Sealed bytes do not get smaller: PostgreSQL need not try
ALTER TABLE responses ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN asked SET STORAGE EXTERNAL,
  ALTER COLUMN outcome SET STORAGE EXTERNAL;
ALTER TABLE items ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE response_events ALTER COLUMN events SET STORAGE EXTERNAL;
ALTER TABLE chat_completions ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN messages SET STORAGE EXTERNAL;
