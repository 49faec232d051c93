-- Starts the ttl of claims anew that hold their keys alone. A row that somebody has locked is passed over. A
-- claim without a token in the answer must be asked for by itself. No part compares each claim with each other or reads
-- the table, whatever the planner knows of it: each row is found by the index, and `ON CONFLICT` finds it again (it
-- is there, for it is locked). The planner believes an `unnest` to have ten rows, and a `generate_series` a thousand.
-- $1 keys, $2 claims, $3 ttls (us), $4 floors, $5 holders (NULL: as it was)
WITH c AS MATERIALIZED (
  SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),
    pg_catalog.unnest($4), pg_catalog.unnest($5),
    pg_catalog.generate_series(1::bigint, pg_catalog.cardinality($1)::bigint)) AS c (k, claim, ttl, floor, holder, n)
), l AS MATERIALIZED (
  SELECT c.* FROM c CROSS JOIN LATERAL (
    SELECT FROM @locks@ r WHERE r.k = c.k AND r.claim = c.claim FOR NO KEY UPDATE OF r SKIP LOCKED) r
), u AS (
  INSERT INTO @locks@ AS r (k, claim, ends, token, holder)
  SELECT DISTINCT ON (l.k) l.k, l.claim, clock_timestamp() + l.ttl::float8 * interval '1 microsecond', l.floor, l.holder FROM l
  ON CONFLICT (k) DO UPDATE SET ends = excluded.ends,
    token = greatest(r.token, excluded.token), holder = coalesce(excluded.holder, r.holder)
  WHERE r.claim = excluded.claim AND r.ends > clock_timestamp()
  RETURNING r.k, r.claim, r.token
)
SELECT c.n, u.token, @us@, set_config('synchronous_commit', '@durable@', true)
FROM c LEFT JOIN u ON u.k = c.k AND u.claim = c.claim
