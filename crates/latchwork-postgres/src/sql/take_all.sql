-- Takes free keys for claims alone, as take.sql does one: a row is a grant. A key that is held, or whose row somebody
-- has locked, is passed over: it must not hold up the others. Of several claims for a key, one at most gets it. Keys
-- without a row get one in the order of the keys: an insert waits for somebody's insert of the same key, and two such
-- statements that wait in the same order never wait for each other. `= ANY ($1)` has each part read by the index,
-- whatever the size of the table was when the plan was made.
-- $1 keys, $2 names, $3 claims, $4 modes, $5 ttls (us), $6 floors, $7 holders, $8 nonce of the guard
WITH c AS MATERIALIZED (
  SELECT * FROM unnest($1, $2, $3, $4, $5, $6, $7) WITH ORDINALITY AS c (k, name, claim, mode, ttl, floor, holder, n)
  WHERE (SELECT @limited@) AND @guarded@
), h AS MATERIALIZED (
  SELECT r.k FROM @locks@ r WHERE r.k = ANY ($1)
), l AS MATERIALIZED (
  SELECT r.k FROM @locks@ r WHERE r.k = ANY ($1) AND NOT r.crowd AND (r.claim IS NULL OR r.ends <= clock_timestamp())
    AND (r.closed IS NULL OR r.closed <= clock_timestamp()) FOR NO KEY UPDATE OF r SKIP LOCKED
), u AS (
  UPDATE @locks@ r SET claim = c.claim, mode = c.mode, holder = c.holder, asked = clock_timestamp(),
    ends = clock_timestamp() + c.ttl * interval '1 microsecond', token = greatest(r.token + 1, @us@, c.floor)
  FROM l JOIN c ON c.k = l.k
  WHERE r.k = ANY ($1) AND r.k = l.k AND NOT r.crowd AND (r.claim IS NULL OR r.ends <= clock_timestamp())
    AND (r.closed IS NULL OR r.closed <= clock_timestamp())
  RETURNING c.n, r.k, r.token
), i AS (
  INSERT INTO @locks@ AS r (k, name, claim, mode, ends, asked, token, holder)
  SELECT c.k, c.name, c.claim, c.mode, clock_timestamp() + c.ttl * interval '1 microsecond', clock_timestamp(),
    greatest(@us@, c.floor), c.holder
  FROM c WHERE NOT EXISTS (SELECT FROM h WHERE h.k = c.k) ORDER BY c.k
  ON CONFLICT (k) DO NOTHING
  RETURNING r.k, r.claim, r.token
)
SELECT g.n, g.token, @us@, set_config('synchronous_commit', '@durable@', true), @notify:g.k@
FROM (SELECT u.n, u.k, u.token FROM u UNION ALL SELECT c.n, i.k, i.token FROM i JOIN c ON c.k = i.k AND c.claim = i.claim) g
