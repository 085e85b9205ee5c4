-- name: lexemes
-- NULL if nothing is indexed
SELECT to_tsvector(nullif(%(language)s, '')::regconfig, text)::text AS vector
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS texts (text, number)
ORDER BY number

-- name: limit_time
-- Sets the time-out of the next statements of this transaction
SELECT set_config('statement_timeout', %(milliseconds)s, true)

-- name: behind
-- Messages that are not indexed, or in another language than the current one. At most max_bytes, unless the first
-- message is larger
SELECT w.tenant_id, i.id, i.status, i.body, i.key_version
FROM item_words w JOIN items i ON i.tenant_id = w.tenant_id AND i.id = w.item_id
WHERE (w.tenant_id, w.item_id) IN (
  SELECT tenant_id, item_id FROM (
    SELECT b.tenant_id, b.item_id,
      sum(octet_length(i.body)) OVER (ROWS UNBOUNDED PRECEDING) - octet_length(i.body) AS bytes_before
    FROM (
      (SELECT tenant_id, item_id FROM item_words WHERE language < %(language)s ORDER BY language LIMIT %(limit)s)
      UNION ALL
      (SELECT tenant_id, item_id FROM item_words WHERE language > %(language)s ORDER BY language LIMIT %(limit)s)
    ) AS b JOIN items i ON i.tenant_id = b.tenant_id AND i.id = b.item_id
    LIMIT %(limit)s
  ) AS measured
  WHERE bytes_before < %(max_bytes)s)
FOR UPDATE OF w SKIP LOCKED

-- name: catch_up
UPDATE item_words w SET words = known.vector::tsvector, language = %(language)s
FROM unnest(%(tenants)s::text[], %(items)s::text[], %(vectors)s::text[]) AS known (tenant_id, item_id, vector)
WHERE w.tenant_id = known.tenant_id AND w.item_id = known.item_id

-- name: languages
SELECT cfgname FROM pg_ts_config WHERE pg_ts_config_is_visible(oid)

-- name: query
SELECT query::text, querytree(query) NOT IN ('', 'T') AS has_words
FROM websearch_to_tsquery(%(language)s::regconfig, %(text)s) AS query

-- name: find
-- Conversations, ranked by their best message among the newest messages that match
WITH newest AS MATERIALIZED (
  SELECT i.conversation_id, i.seq, w.item_id
  FROM item_words w JOIN items i ON i.tenant_id = w.tenant_id AND i.id = w.item_id
  WHERE w.tenant_id = %(tenant)s AND w.words @@ %(words)s::tsquery AND i.superseded_at IS NULL
  ORDER BY i.created_at DESC, i.seq DESC
  LIMIT %(ranked)s
), found AS (
  SELECT DISTINCT ON (n.conversation_id) n.conversation_id, n.item_id, ts_rank_cd(w.words, %(words)s::tsquery, 1) AS rank
  FROM newest n JOIN item_words w ON w.tenant_id = %(tenant)s AND w.item_id = n.item_id
  ORDER BY n.conversation_id, rank DESC, n.seq
), page AS (
  SELECT c.id, c.created_at, c.updated_at, c.end_user, c.metadata, c.title, c.title_key_version, f.rank, f.item_id
  FROM found f JOIN conversations c ON c.tenant_id = %(tenant)s AND c.id = f.conversation_id
  WHERE c.deleted_at IS NULL
    AND (%(end_user)s::text IS NULL OR c.end_user = %(end_user)s)
    AND c.metadata @> %(metadata)s
    AND (%(after)s::text IS NULL
         OR (f.rank, c.id) < (
           coalesce(%(rank)s::float4, (SELECT rank FROM found WHERE conversation_id = %(after)s)), %(after)s))
  ORDER BY f.rank DESC, c.id DESC
  LIMIT %(limit)s
), measured AS (
  SELECT p.*, i.status AS item_status, i.body AS item_body, i.key_version AS item_key_version,
    sum(octet_length(i.body)) OVER (ORDER BY p.rank DESC, p.id DESC) AS total, count(*) OVER () AS number
  FROM page p JOIN items i ON i.tenant_id = %(tenant)s AND i.id = p.item_id
)
SELECT * FROM measured WHERE total - octet_length(item_body) < %(max_bytes)s ORDER BY rank DESC, id DESC

-- name: marked
SELECT ts_headline(
  language, texts.text, websearch_to_tsquery(language, %(text)s), concat('HighlightAll=true, StartSel=', chr(2), ', StopSel=', chr(3))
) AS text
FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS texts (text, number), CAST(%(language)s AS regconfig) AS language
ORDER BY number

-- name: relevant
-- The newest messages are compared. A word weighs more if fewer messages of the conversation have it
WITH messages AS MATERIALIZED (
  SELECT i.id, i.seq, w.words
  FROM items i JOIN item_words w ON w.tenant_id = i.tenant_id AND w.item_id = i.id
  WHERE i.tenant_id = %(tenant)s AND i.conversation_id = %(conversation)s AND i.superseded_at IS NULL
    AND (%(before)s::text IS NULL
         OR i.seq < (SELECT seq FROM items WHERE tenant_id = %(tenant)s AND conversation_id = %(conversation)s AND id = %(before)s))
  ORDER BY i.seq DESC
  LIMIT %(among)s
), searched AS (
  SELECT word, ln(1 + (SELECT count(*) FROM messages)::float8 / count(*)) AS weight
  FROM unnest(%(words)s::tsquery[]) AS word JOIN messages m ON m.words @@ word
  GROUP BY word
), best AS (
  SELECT m.id, m.seq, sum(s.weight * ts_rank(m.words, s.word, 1)) AS relevance
  FROM messages m JOIN searched s ON m.words @@ s.word
  GROUP BY m.id, m.seq
  ORDER BY relevance DESC, m.seq DESC
  LIMIT %(limit)s
)
SELECT id FROM best ORDER BY relevance DESC, seq DESC
