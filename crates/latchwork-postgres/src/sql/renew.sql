-- Starts the ttl of claims anew that hold their keys alone. A row that somebody has locked is passed over. A
-- claim without a token in the answer must be asked for by itself. `= ANY ($1)` has the rows read by the index,
-- whatever the size of the table was when the plan was made.
-- $1 keys, $2 claims, $3 ttls (us), $4 floors, $5 holders (NULL: as it was)
WITH c AS MATERIALIZED (
  SELECT * FROM unnest($1, $2, $3, $4, $5) WITH ORDINALITY AS c (k, claim, ttl, floor, holder, n)
), l AS MATERIALIZED (
  SELECT r.k FROM @locks@ r JOIN c ON r.k = c.k AND r.claim = c.claim WHERE r.k = ANY ($1)
  ORDER BY r.k FOR NO KEY UPDATE OF r SKIP LOCKED
), u AS (
  UPDATE @locks@ r SET ends = clock_timestamp() + c.ttl * interval '1 microsecond',
    token = greatest(r.token, c.floor), holder = coalesce(c.holder, r.holder)
  FROM l JOIN c ON c.k = l.k
  WHERE r.k = l.k AND r.claim = c.claim AND r.ends > clock_timestamp()
  RETURNING c.n, r.token
)
SELECT c.n, u.token, @us@, set_config('synchronous_commit', '@durable@', true) FROM c LEFT JOIN u USING (n)
