-- From version 0, the table of the prototype, to version 1. A lock that is held stays held; those that wait ask again.
DO @body@
BEGIN
  IF obj_description(to_regclass(@literal:locks@), 'pg_class') = 'latchwork 0' THEN
    ALTER TABLE @locks@ ADD COLUMN IF NOT EXISTS name bytea, ADD COLUMN IF NOT EXISTS mode smallint NOT NULL DEFAULT 0,
      ADD COLUMN IF NOT EXISTS asked timestamptz, ADD COLUMN IF NOT EXISTS open timestamptz NOT NULL DEFAULT 'epoch',
      ADD COLUMN IF NOT EXISTS closed_by bytea;
    DROP TABLE IF EXISTS @line@, @alive@;
    UPDATE @locks@ SET crowd = false WHERE crowd;
  END IF;
END @body@;
