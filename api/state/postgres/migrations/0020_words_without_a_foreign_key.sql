-- The words of an item are added in the statement that adds the item, and go with it by a trigger. A foreign key looked
-- every item up, by a plan for the size that the table had once: a plan for a small table reads every row of the tenant, so
-- that a statement that added 10,000 items to it took longer than a statement may.
ALTER TABLE item_words DROP CONSTRAINT item_words_tenant_id_item_id_fkey;

CREATE OR REPLACE FUNCTION baton_items_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM item_words w USING gone WHERE w.tenant_id = gone.tenant_id AND w.item_id = gone.id;
  INSERT INTO tenant_bytes (tenant_id, bytes)
  SELECT tenant_id, -sum(octet_length(body) + baton_row_bytes()) FROM gone GROUP BY tenant_id;
  UPDATE conversations c SET bytes = c.bytes - of_conversation.bytes
  FROM (
    SELECT tenant_id, conversation_id, sum(octet_length(body)) AS bytes FROM gone
    WHERE conversation_id IS NOT NULL GROUP BY tenant_id, conversation_id
  ) AS of_conversation
  WHERE c.tenant_id = of_conversation.tenant_id AND c.id = of_conversation.conversation_id;
  RETURN NULL;
END $$;
