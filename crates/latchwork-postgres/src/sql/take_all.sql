-- Takes free keys for claims alone, as take.sql does one: a row is a grant. A key that is held, or whose row somebody
-- has locked, is passed over: it must not hold up the others. Of several claims for a key, one at most gets it. Keys
-- without a row get one in the order of the keys: an insert waits for somebody's insert of the same key, and two such
-- statements that wait in the same order never wait for each other. For its shape, see renew.sql.
-- $1 keys, $2 names, $3 claims, $4 modes, $5 ttls (us), $6 floors, $7 holders, $8 nonce of the guard
WITH c AS MATERIALIZED (
  SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),
    pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7),
    pg_catalog.generate_series(1::bigint, pg_catalog.cardinality($1)::bigint)) AS c (k, name, claim, mode, ttl, floor, holder, n)
  WHERE (SELECT @hasty@) AND @guarded@
), h AS MATERIALIZED (
  SELECT c.n FROM c CROSS JOIN LATERAL (SELECT FROM @locks@ r WHERE r.k = c.k OFFSET 0) r
), l AS MATERIALIZED (
  SELECT c.* FROM c CROSS JOIN LATERAL (
    SELECT FROM @locks@ r WHERE r.k = c.k AND NOT r.crowd AND (r.claim IS NULL OR r.ends <= clock_timestamp())
      AND (r.closed IS NULL OR r.closed <= clock_timestamp()) FOR NO KEY UPDATE OF r SKIP LOCKED) r
), u AS (
  INSERT INTO @locks@ AS r (k, claim, mode, ends, token, holder)
  SELECT DISTINCT ON (l.k) l.k, l.claim, l.mode, clock_timestamp() + l.ttl::float8 * interval '1 microsecond', l.floor, l.holder FROM l
  ON CONFLICT (k) DO UPDATE SET claim = excluded.claim, mode = excluded.mode, holder = excluded.holder, asked = clock_timestamp(),
    ends = excluded.ends, token = greatest(r.token + 1, @us@, excluded.token)
  WHERE NOT r.crowd AND (r.claim IS NULL OR r.ends <= clock_timestamp()) AND (r.closed IS NULL OR r.closed <= clock_timestamp())
  RETURNING r.k, r.claim, r.token
), i AS (
  INSERT INTO @locks@ AS r (k, name, claim, mode, ends, asked, token, holder)
  SELECT c.k, c.name, c.claim, c.mode, clock_timestamp() + c.ttl::float8 * interval '1 microsecond', clock_timestamp(),
    greatest(@us@, c.floor, @floor@), c.holder
  FROM c WHERE NOT EXISTS (SELECT FROM h WHERE h.n = c.n) ORDER BY c.k
  ON CONFLICT (k) DO NOTHING
  RETURNING r.k, r.claim, r.token
)
SELECT c.n, g.token, @us@, set_config('synchronous_commit', '@durable@', true), @notify:g.k@
FROM (SELECT * FROM u UNION ALL SELECT * FROM i) g JOIN c ON c.k = g.k AND c.claim = g.claim
