-- From version 2 to version 3: the table says its version by itself, and no token is smaller than that of the row with
-- the empty key, whatever rows were removed before.
DO @body@
BEGIN
  IF NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = to_regclass(@literal:locks@) AND c.conname = 'latchwork_version_3') THEN
    ALTER TABLE @locks@ ADD CONSTRAINT latchwork_version_3 CHECK (true) NOT VALID;
  END IF;
END @body@;
INSERT INTO @locks@ AS f (k, token, ends) VALUES ('', @us@, 'epoch')
ON CONFLICT (k) DO UPDATE SET token = greatest(f.token, excluded.token);
