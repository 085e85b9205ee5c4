-- Tenants, the keys that their texts are encrypted with, and their conversations.
--
-- Every row belongs to a tenant. Row-level security hides the row from other tenants even if a query forgets its condition.
-- A job over the rows of all tenants sets app.tenant_id to '*'.

CREATE TABLE tenants (
  id         text PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE tenant_keys (
  tenant_id    text NOT NULL REFERENCES tenants (id),
  version      int NOT NULL,
  -- Wrapped by the master key. NULL: the key is destroyed, and its texts cannot be read any more
  wrapped_key  bytea,
  master_key   text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  destroyed_at timestamptz,
  PRIMARY KEY (tenant_id, version)
);

CREATE TABLE conversations (
  tenant_id   text NOT NULL REFERENCES tenants (id),
  id          text NOT NULL,
  end_user    text,
  metadata    jsonb NOT NULL DEFAULT '{}',
  next_seq    bigint NOT NULL DEFAULT 1,
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  deleted_at  timestamptz,
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX conversations_list ON conversations (tenant_id, updated_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX conversations_of_user ON conversations (tenant_id, end_user, updated_at DESC, id DESC)
  WHERE deleted_at IS NULL AND end_user IS NOT NULL;
CREATE INDEX conversations_metadata ON conversations USING gin (metadata jsonb_path_ops) WHERE deleted_at IS NULL;
CREATE INDEX conversations_deleted ON conversations (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE items (
  tenant_id       text NOT NULL,
  id              text NOT NULL,
  conversation_id text NOT NULL,
  seq             bigint NOT NULL,
  type            text NOT NULL,
  role            text,
  status          text NOT NULL DEFAULT 'completed' CHECK (status IN ('in_progress', 'completed', 'incomplete')),
  body            bytea NOT NULL,
  key_version     int NOT NULL,
  created_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, conversation_id) REFERENCES conversations (tenant_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX items_in_order ON items (tenant_id, conversation_id, seq);

ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON tenants
  USING (current_setting('app.tenant_id', true) IN (id, '*'))
  WITH CHECK (id = current_setting('app.tenant_id', true));

ALTER TABLE tenant_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON tenant_keys
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

ALTER TABLE conversations ENABLE ROW LEVEL SECURITY;
ALTER TABLE conversations FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON conversations
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

ALTER TABLE items ENABLE ROW LEVEL SECURITY;
ALTER TABLE items FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON items
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));
