-- Ends claims that hold their keys alone and that nobody waits for, as free.sql does one. No row for one of them: more
-- must be asked. A row that somebody has locked is passed over, so this waits for nobody, and the order of the keys
-- does not matter. For its shape, see renew.sql.
-- $1 keys, $2 claims
WITH c AS MATERIALIZED (
  SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2),
    pg_catalog.generate_series(1::bigint, pg_catalog.cardinality($1)::bigint)) AS c (k, claim, n)
), l AS MATERIALIZED (
  SELECT c.* FROM c CROSS JOIN LATERAL (
    SELECT FROM @locks@ r WHERE r.k = c.k AND r.claim = c.claim AND NOT r.crowd FOR NO KEY UPDATE OF r SKIP LOCKED) r
), u AS (
  INSERT INTO @locks@ AS r (k, claim, ends, token) SELECT DISTINCT ON (l.k) l.k, l.claim, 'epoch'::timestamptz, 0 FROM l
  ON CONFLICT (k) DO UPDATE SET claim = NULL, holder = NULL WHERE r.claim = excluded.claim AND NOT r.crowd
  RETURNING r.k, r.ends > clock_timestamp() AS was_held, set_config('synchronous_commit', 'off', true) AS set, @notify:r.k@ AS news
)
SELECT l.n, u.was_held, u.set, u.news FROM l JOIN u ON u.k = l.k
