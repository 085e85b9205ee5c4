-- What the stages found in the text when the appeal was made, sealed like the reason. NULL if nothing was looked at
ALTER TABLE safety_appeals ADD COLUMN review bytea;

CREATE OR REPLACE FUNCTION baton_bytes(a safety_appeals) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT baton_row_bytes() + octet_length(a.reason) + coalesce(octet_length(a.note), 0)
    + coalesce(octet_length(a.review), 0)
$$;
