-- A row for each key: the claim that holds it alone, the last token, and until when it stays closed. Only
-- the primary key is indexed, so every change of a claim is a HOT update. `k` is the key, shortened if it
-- is long, and `name` is the whole key then. The row with the empty key is no key's: its claim is the
-- guard's nonce, and its token a floor, see sweep_idle.sql. `mode`: 0 alone, 1 a writer; in the line also 2 a reader, 3 permits,
-- 9 a claim that has ended and must not come back.
CREATE TABLE IF NOT EXISTS @locks@ (
  k bytea PRIMARY KEY,
  name bytea,
  token bigint NOT NULL,
  claim uuid,
  mode smallint NOT NULL DEFAULT 0,
  ends timestamptz NOT NULL,
  asked timestamptz,
  crowd boolean NOT NULL DEFAULT false,
  closed timestamptz,
  open timestamptz NOT NULL DEFAULT 'epoch',
  holder bytea,
  closed_by bytea,
  CONSTRAINT latchwork_version_3 CHECK (true)
) WITH (fillfactor = 50);
-- Claims that share a key (`held` is their token) and claims that wait. If a key has a row here, its row above
-- says so (`crowd`), and only the functions change the key then, under the lock of that row.
CREATE TABLE IF NOT EXISTS @line@ (
  k bytea NOT NULL,
  pos bigint NOT NULL,
  claim uuid NOT NULL,
  mode smallint NOT NULL,
  take integer NOT NULL,
  lim integer NOT NULL,
  fifo boolean NOT NULL,
  held bigint,
  ends timestamptz NOT NULL,
  asked timestamptz NOT NULL,
  tried timestamptz NOT NULL,
  ttl bigint NOT NULL,
  probation bigint NOT NULL,
  word uuid,
  process integer,
  told boolean NOT NULL DEFAULT false,
  holder bytea NOT NULL,
  PRIMARY KEY (k, pos)
) WITH (fillfactor = 50);
-- A claim finds its row, and a key those that share it, however long its queue is. `claim` never changes, and `held`
-- once, so a renewal and a look are HOT updates here too.
DO @body@
BEGIN
  -- Not IF NOT EXISTS: that locks the table first.
  IF to_regclass(@literal:_claims@) IS NULL THEN
    CREATE UNIQUE INDEX @index:claims@ ON @line@ (claim, k);
  END IF;
  IF to_regclass(@literal:_held@) IS NULL THEN
    CREATE INDEX @index:held@ ON @line@ (k, held) WHERE held IS NOT NULL;
  END IF;
END @body@;
-- The guard's identity. A crash and a promotion empty a table that is not logged; a clean restart does not.
CREATE UNLOGGED TABLE IF NOT EXISTS @alive@ (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  nonce uuid NOT NULL,
  opens timestamptz NOT NULL,
  system text NOT NULL,
  timeline text NOT NULL,
  longest bigint NOT NULL
);
