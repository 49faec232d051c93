-- Removes rows that nobody has used for an hour, from about 32 pages of the table, which are others each time. No token
-- goes back by it, whatever the clock does: the row with the empty key has a token that is larger than those that are
-- removed, and a new row begins with it (`floor`). That token is raised before, by a call of this that removes
-- nothing: a statement that makes a row has not read the one before for certain.
-- Says how many rows it has removed, and whether it has raised the token.
WITH c AS MATERIALIZED (
  SELECT @floor@ AS floor, (date_part('epoch', clock_timestamp() - interval '1 minute') * 1e6::float8)::bigint AS us
), raised AS (
  INSERT INTO @locks@ AS f (k, token, ends) SELECT '', c.us, 'epoch' FROM c WHERE @limited@ AND coalesce(c.floor, 0::bigint) < c.us - 1800000000::bigint
  ON CONFLICT (k) DO UPDATE SET token = greatest(f.token, excluded.token)
  RETURNING f.k
), gone AS (
  DELETE FROM @locks@ d WHERE d.k IN (
    SELECT l.k FROM @locks@ l
    WHERE l.k = ANY (ARRAY(SELECT s.k FROM @locks@ s
        TABLESAMPLE SYSTEM (least(100::float8, 26214400::float8 / greatest(1::float8, pg_relation_size(@literal:locks@::regclass)::float8)))))
      AND l.k <> '' AND NOT l.crowd AND l.ends < clock_timestamp() - interval '1 hour'
      AND (l.closed IS NULL OR l.closed < clock_timestamp() - interval '1 hour')
      AND l.token < (SELECT c.floor FROM c)
    FOR UPDATE SKIP LOCKED)
  RETURNING d.k
)
SELECT (SELECT count(*) FROM gone), EXISTS (SELECT FROM raised), set_config('synchronous_commit', 'off', true)
