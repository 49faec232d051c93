-- Ends claims that hold their keys alone and that nobody waits for, as free.sql does one. No row for one of them: more
-- must be asked. A row that somebody has locked is passed over, so this waits for nobody, and the order of the keys
-- does not matter.
-- $1 keys, $2 claims
WITH c AS MATERIALIZED (
  SELECT * FROM unnest($1, $2) WITH ORDINALITY AS c (k, claim, n)
), l AS MATERIALIZED (
  SELECT r.k FROM @locks@ r JOIN c ON r.k = c.k AND r.claim = c.claim WHERE r.k = ANY ($1) AND NOT r.crowd
  FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE @locks@ r SET claim = NULL, holder = NULL FROM l JOIN c ON c.k = l.k
WHERE r.k = l.k AND r.claim = c.claim AND NOT r.crowd
RETURNING c.n, r.ends > clock_timestamp(), set_config('synchronous_commit', 'off', true), @notify:r.k@
