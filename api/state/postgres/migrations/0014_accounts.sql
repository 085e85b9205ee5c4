-- Accounts: what an operator keeps of tenants, their projects and their API keys, and who has changed what.
--
-- Each change raises the number in accounts_version, and each changed row has the number of its last change. The number is
-- locked from the change to the end of its transaction. So whoever reads a number sees all changes up to it.

CREATE TABLE accounts_version (
  is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
  version bigint NOT NULL
);
INSERT INTO accounts_version (version) VALUES (1);

CREATE TABLE accounts (
  tenant_id  text PRIMARY KEY REFERENCES tenants (id),
  name       text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 200),
  status     text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended')),
  -- Limits, and the share of the workers: TenantSettings of api/identity/settings.py
  settings   jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(settings) = 'object'),
  created_at timestamptz NOT NULL DEFAULT now(),
  changed_in bigint NOT NULL
);
CREATE INDEX accounts_changed ON accounts (changed_in);

CREATE TABLE projects (
  tenant_id   text NOT NULL REFERENCES accounts (tenant_id),
  id          text NOT NULL UNIQUE,
  name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  is_default  boolean NOT NULL DEFAULT false,
  -- ScopeLimits of api/identity/settings.py
  limits      jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object'),
  created_at  timestamptz NOT NULL DEFAULT now(),
  archived_at timestamptz,
  changed_in  bigint NOT NULL,
  PRIMARY KEY (tenant_id, id),
  CHECK (NOT (is_default AND archived_at IS NOT NULL))
);
CREATE UNIQUE INDEX projects_default ON projects (tenant_id) WHERE is_default;
CREATE UNIQUE INDEX projects_name ON projects (tenant_id, name) WHERE archived_at IS NULL;
CREATE INDEX projects_changed ON projects (changed_in);

CREATE TABLE api_keys (
  tenant_id    text NOT NULL,
  id           text NOT NULL UNIQUE,
  project_id   text NOT NULL,
  -- SHA-256 of the text of the key. The text is stored nowhere
  digest       bytea NOT NULL UNIQUE CHECK (octet_length(digest) = 32),
  handle       text NOT NULL,
  name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  rights       text[] NOT NULL CHECK (cardinality(rights) > 0),
  -- The models that may be used. NULL: all
  models       text[] CHECK (cardinality(models) > 0),
  limits       jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object'),
  created_at   timestamptz NOT NULL DEFAULT now(),
  expires_at   timestamptz,
  revoked_at   timestamptz,
  -- The key that a rotation has made in place of this one
  rotated_to   text,
  last_used_at timestamptz,
  changed_in   bigint NOT NULL,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, project_id) REFERENCES projects (tenant_id, id),
  FOREIGN KEY (tenant_id, rotated_to) REFERENCES api_keys (tenant_id, id)
);
CREATE INDEX api_keys_list ON api_keys (tenant_id, created_at, id);
CREATE INDEX api_keys_changed ON api_keys (changed_in);

CREATE TABLE account_changes (
  sequence  bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
  tenant_id text NOT NULL REFERENCES tenants (id),
  at        timestamptz NOT NULL DEFAULT now(),
  -- Who has made the change
  actor     text NOT NULL,
  -- What was done, such as key.revoke, and the id of what it was done to
  action    text NOT NULL,
  object    text NOT NULL,
  -- What was changed, without secrets. NULL: the object is new
  before    jsonb,
  after     jsonb NOT NULL
);
CREATE INDEX account_changes_list ON account_changes (tenant_id, sequence);

CREATE FUNCTION baton_account_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accounts_version SET version = version + 1 RETURNING version INTO NEW.changed_in;
  RETURN NEW;
END $$;
CREATE TRIGGER accounts_changed BEFORE INSERT OR UPDATE ON accounts
  FOR EACH ROW EXECUTE FUNCTION baton_account_changed();
CREATE TRIGGER projects_changed BEFORE INSERT OR UPDATE ON projects
  FOR EACH ROW EXECUTE FUNCTION baton_account_changed();
CREATE TRIGGER api_keys_added BEFORE INSERT ON api_keys
  FOR EACH ROW EXECUTE FUNCTION baton_account_changed();
-- When a key was last used is no change
CREATE TRIGGER api_keys_changed BEFORE UPDATE ON api_keys
  FOR EACH ROW
  WHEN ((to_jsonb(OLD) - 'last_used_at') IS DISTINCT FROM (to_jsonb(NEW) - 'last_used_at'))
  EXECUTE FUNCTION baton_account_changed();

-- Rows of other tables name accounts, projects and keys, so they stay: a tenant is suspended, a project archived, a key
-- revoked. These triggers stop mistakes; a person who owns the tables can drop them
CREATE FUNCTION baton_never_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'rows of % are never deleted', TG_TABLE_NAME;
END $$;
CREATE TRIGGER accounts_deleted BEFORE DELETE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION baton_never_deleted();
CREATE TRIGGER projects_deleted BEFORE DELETE ON projects FOR EACH STATEMENT EXECUTE FUNCTION baton_never_deleted();
CREATE TRIGGER api_keys_deleted BEFORE DELETE ON api_keys FOR EACH STATEMENT EXECUTE FUNCTION baton_never_deleted();
CREATE TRIGGER accounts_version_deleted BEFORE DELETE ON accounts_version
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_deleted();
CREATE TRIGGER account_changes_deleted BEFORE DELETE ON account_changes
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_deleted();

-- A key that is revoked stays so, and no key becomes another one
CREATE FUNCTION baton_api_key_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (OLD.tenant_id, OLD.id, OLD.project_id, OLD.digest, OLD.handle)
      IS DISTINCT FROM (NEW.tenant_id, NEW.id, NEW.project_id, NEW.digest, NEW.handle)
    OR (OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at)
  THEN
    RAISE EXCEPTION 'a revoked API key stays revoked, and no key becomes another one';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER api_keys_kept BEFORE UPDATE ON api_keys FOR EACH ROW EXECUTE FUNCTION baton_api_key_kept();

CREATE FUNCTION baton_never_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
END $$;
CREATE TRIGGER account_changes_changed BEFORE UPDATE ON account_changes
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_changed();

CREATE TRIGGER accounts_truncated BEFORE TRUNCATE ON accounts
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();
CREATE TRIGGER projects_truncated BEFORE TRUNCATE ON projects
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();
CREATE TRIGGER api_keys_truncated BEFORE TRUNCATE ON api_keys
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();
CREATE TRIGGER account_changes_truncated BEFORE TRUNCATE ON account_changes
  FOR EACH STATEMENT EXECUTE FUNCTION baton_never_truncated();

-- Every transaction of a tenant, or of all, sees the number, since every change raises it
ALTER TABLE accounts_version ENABLE ROW LEVEL SECURITY;
ALTER TABLE accounts_version FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON accounts_version
  USING (coalesce(current_setting('app.tenant_id', true), '') <> '');

ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
ALTER TABLE accounts FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON accounts
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

ALTER TABLE projects ENABLE ROW LEVEL SECURITY;
ALTER TABLE projects FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON projects
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));

-- Times of last use are written for the keys of many tenants together
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE api_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON api_keys
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (current_setting('app.tenant_id', true) IN (tenant_id, '*'));

ALTER TABLE account_changes ENABLE ROW LEVEL SECURITY;
ALTER TABLE account_changes FORCE ROW LEVEL SECURITY;
CREATE POLICY own ON account_changes
  USING (current_setting('app.tenant_id', true) IN (tenant_id, '*'))
  WITH CHECK (tenant_id = current_setting('app.tenant_id', true));
