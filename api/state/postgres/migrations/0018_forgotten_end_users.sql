-- The name of an end user as the ledger may have it: empty if the tenant was erased after the request arrived. Records of
-- usage may come from the disk of an ingress long after the erasure, so tenants.erased_at stays for ever
CREATE FUNCTION baton_end_user(tenant text, entry uuid, end_user text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN end_user = '' OR (
      SELECT erased_at >= baton_entry_time(entry) OR (erased_at IS NULL AND erasing_since IS NOT NULL)
      FROM tenants WHERE id = tenant)
    THEN '' ELSE end_user END
$$;
