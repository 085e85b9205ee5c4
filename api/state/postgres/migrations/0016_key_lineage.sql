-- The limits and the budget of an API key belong to all keys that rotations have made of it, one after another: `lineage` is
-- the id of the first of them.

ALTER TABLE api_keys ADD COLUMN lineage text;

WITH RECURSIVE chain AS (
  SELECT tenant_id, id, rotated_to, id AS lineage FROM api_keys k
  WHERE NOT EXISTS (SELECT FROM api_keys o WHERE o.tenant_id = k.tenant_id AND o.rotated_to = k.id)
  UNION ALL
  SELECT k.tenant_id, k.id, k.rotated_to, chain.lineage
  FROM chain JOIN api_keys k ON k.tenant_id = chain.tenant_id AND k.id = chain.rotated_to
)
UPDATE api_keys k SET lineage = chain.lineage FROM chain WHERE k.tenant_id = chain.tenant_id AND k.id = chain.id;

ALTER TABLE api_keys ALTER COLUMN lineage SET NOT NULL;
CREATE INDEX api_keys_of_lineage ON api_keys (tenant_id, lineage);

CREATE OR REPLACE FUNCTION baton_api_key_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (OLD.tenant_id, OLD.id, OLD.project_id, OLD.digest, OLD.handle, OLD.lineage)
      IS DISTINCT FROM (NEW.tenant_id, NEW.id, NEW.project_id, NEW.digest, NEW.handle, NEW.lineage)
    OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
  THEN
    RAISE EXCEPTION 'a revoked API key stays revoked, and no key becomes another one';
  END IF;
  RETURN NEW;
END $$;
