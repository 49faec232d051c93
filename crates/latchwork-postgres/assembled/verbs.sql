-- What each request sends, on a session of its own; the guard is on.

-- Take
-- Takes a free key for one claim alone: a row is the grant, no row that more must be asked. All that decides
-- is evaluated after the lock of the row, which ON CONFLICT takes; what is before it only saves a key that
-- is held the lock and its commit.
-- $1 key, $2 name, $3 claim, $4 mode, $5 ttl (us), $6 floor, $7 holder, $8 nonce of the guard
INSERT INTO "public"."latchwork" AS l (k, name, claim, mode, ends, asked, token, holder)
SELECT $1, $2, $3, $4, clock_timestamp() + $5::float8 * interval '1 microsecond', clock_timestamp(), greatest((date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, $6, (SELECT f.token FROM "public"."latchwork" f WHERE f.k = '')), $7
WHERE set_config('lock_timeout', '500ms', true) IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."latchwork" h WHERE h.k = $1
    AND (h.crowd OR h.claim <> $3 AND h.ends > clock_timestamp() OR h.closed > clock_timestamp()))
  AND EXISTS (SELECT FROM "public"."latchwork_alive" g, "public"."latchwork" s WHERE g.nonce = $8 AND g.opens <= clock_timestamp() AND s.k = '' AND s.claim = $8)
ON CONFLICT (k) DO UPDATE SET
  claim = excluded.claim, mode = excluded.mode, holder = excluded.holder,
  ends = clock_timestamp() + $5::float8 * interval '1 microsecond',
  asked = CASE WHEN l.claim = excluded.claim AND l.ends > clock_timestamp() THEN l.asked ELSE clock_timestamp() END,
  token = CASE WHEN l.claim = excluded.claim AND l.ends > clock_timestamp() THEN l.token
    ELSE greatest(l.token + 1, (date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, $6) END
WHERE NOT l.crowd AND (l.claim = excluded.claim AND l.ends > clock_timestamp()
  OR (l.claim IS NULL OR l.ends <= clock_timestamp()) AND (l.closed IS NULL OR l.closed <= clock_timestamp()))
RETURNING l.token, (date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, set_config('synchronous_commit', 'on', true), CASE WHEN NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(l.k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN pg_notify('latchwork_15f024ae_seen', hashtext(encode(l.k, 'hex'))::text) END, CASE WHEN l.xmax = 0 THEN "public"."latchwork_recheck"($8) END

-- TakeAll
-- Takes free keys for claims alone, as take.sql does one: a row is a grant. A key that is held, or whose row somebody
-- has locked, is passed over: it must not hold up the others. Of several claims for a key, one at most gets it. Keys
-- without a row get one in the order of the keys: an insert waits for somebody's insert of the same key, and two such
-- statements that wait in the same order never wait for each other. For its shape, see renew.sql.
-- $1 keys, $2 names, $3 claims, $4 modes, $5 ttls (us), $6 floors, $7 holders, $8 nonce of the guard
WITH c AS MATERIALIZED (
  SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),
    pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7),
    pg_catalog.generate_series(1::bigint, pg_catalog.cardinality($1)::bigint)) AS c (k, name, claim, mode, ttl, floor, holder, n)
  WHERE (SELECT set_config('lock_timeout', '500ms', true) IS NOT NULL) AND EXISTS (SELECT FROM "public"."latchwork_alive" g, "public"."latchwork" s WHERE g.nonce = $8 AND g.opens <= clock_timestamp() AND s.k = '' AND s.claim = $8)
), h AS MATERIALIZED (
  SELECT c.n FROM c CROSS JOIN LATERAL (SELECT FROM "public"."latchwork" r WHERE r.k = c.k OFFSET 0) r
), l AS MATERIALIZED (
  SELECT c.* FROM c CROSS JOIN LATERAL (
    SELECT FROM "public"."latchwork" r WHERE r.k = c.k AND NOT r.crowd AND (r.claim IS NULL OR r.ends <= clock_timestamp())
      AND (r.closed IS NULL OR r.closed <= clock_timestamp()) FOR NO KEY UPDATE OF r SKIP LOCKED) r
), u AS (
  INSERT INTO "public"."latchwork" AS r (k, claim, mode, ends, token, holder)
  SELECT DISTINCT ON (l.k) l.k, l.claim, l.mode, clock_timestamp() + l.ttl::float8 * interval '1 microsecond', l.floor, l.holder FROM l
  ON CONFLICT (k) DO UPDATE SET claim = excluded.claim, mode = excluded.mode, holder = excluded.holder, asked = clock_timestamp(),
    ends = excluded.ends, token = greatest(r.token + 1, (date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, excluded.token)
  WHERE NOT r.crowd AND (r.claim IS NULL OR r.ends <= clock_timestamp()) AND (r.closed IS NULL OR r.closed <= clock_timestamp())
  RETURNING r.k, r.claim, r.token
), i AS (
  INSERT INTO "public"."latchwork" AS r (k, name, claim, mode, ends, asked, token, holder)
  SELECT c.k, c.name, c.claim, c.mode, clock_timestamp() + c.ttl::float8 * interval '1 microsecond', clock_timestamp(),
    greatest((date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, c.floor, (SELECT f.token FROM "public"."latchwork" f WHERE f.k = '')), c.holder
  FROM c WHERE NOT EXISTS (SELECT FROM h WHERE h.n = c.n) ORDER BY c.k
  ON CONFLICT (k) DO NOTHING
  RETURNING r.k, r.claim, r.token
)
SELECT c.n, g.token, (date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, set_config('synchronous_commit', 'on', true), CASE WHEN NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(g.k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN pg_notify('latchwork_15f024ae_seen', hashtext(encode(g.k, 'hex'))::text) END
FROM (SELECT * FROM u UNION ALL SELECT * FROM i) g JOIN c ON c.k = g.k AND c.claim = g.claim

-- Free
-- Ends a claim that holds a key alone and that nobody waits for. No row: more must be asked. A release that
-- a crash loses leaves the key held until the claim's ttl is over, so it need not be durable.
-- $1 key, $2 claim
UPDATE "public"."latchwork" l SET claim = NULL, holder = NULL WHERE l.k = $1 AND l.claim = $2 AND NOT l.crowd AND set_config('lock_timeout', '900ms', true) IS NOT NULL
RETURNING l.ends > clock_timestamp(), (date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, set_config('synchronous_commit', 'off', true), CASE WHEN NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(l.k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN pg_notify('latchwork_15f024ae_seen', hashtext(encode(l.k, 'hex'))::text) END

-- FreeAll
-- Ends claims that hold their keys alone and that nobody waits for, as free.sql does one. No row for one of them: more
-- must be asked. A row that somebody has locked is passed over, so this waits for nobody, and the order of the keys
-- does not matter. For its shape, see renew.sql.
-- $1 keys, $2 claims
WITH c AS MATERIALIZED (
  SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2),
    pg_catalog.generate_series(1::bigint, pg_catalog.cardinality($1)::bigint)) AS c (k, claim, n)
), l AS MATERIALIZED (
  SELECT c.* FROM c CROSS JOIN LATERAL (
    SELECT FROM "public"."latchwork" r WHERE r.k = c.k AND r.claim = c.claim AND NOT r.crowd FOR NO KEY UPDATE OF r SKIP LOCKED) r
), u AS (
  INSERT INTO "public"."latchwork" AS r (k, claim, ends, token) SELECT DISTINCT ON (l.k) l.k, l.claim, 'epoch'::timestamptz, 0 FROM l
  ON CONFLICT (k) DO UPDATE SET claim = NULL, holder = NULL WHERE r.claim = excluded.claim AND NOT r.crowd
  RETURNING r.k, r.ends > clock_timestamp() AS was_held, set_config('synchronous_commit', 'off', true) AS set, CASE WHEN NOT pg_try_advisory_xact_lock(-368059567, hashtext(encode(r.k, 'hex'))) AND pg_notification_queue_usage() < 0.5::float8 THEN pg_notify('latchwork_15f024ae_seen', hashtext(encode(r.k, 'hex'))::text) END AS news
)
SELECT l.n, u.was_held, u.set, u.news FROM l JOIN u ON u.k = l.k

-- Stand
SELECT * FROM "public"."latchwork_stand"($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, CASE WHEN set_config('lock_timeout', '900ms', true) IS NOT NULL THEN 'on' END)

-- Leave
SELECT * FROM "public"."latchwork_leave"($1, $2, $3, $4, $5, $6, $7, CASE WHEN set_config('lock_timeout', '900ms', true) IS NOT NULL THEN 'on' END)

-- LeaveAndTell
-- As the function alone, and keeps in the session what is to be told, for the statement in the same flight: tell.sql.
-- Another request may come between the two, so it is added to what is there. If commits wait for a synchronous standby,
-- nothing is kept: somebody may end that wait, and a grant that is not confirmed must not be told. The fourth column
-- says whether all is kept.
SELECT l.released, l.now_us, l.tell, s.alone, CASE WHEN s.alone AND l.tell <> '{}' THEN set_config('latchwork.tell',
  (CASE WHEN length(s.tell) BETWEEN 1 AND 10000 THEN s.tell::text[] ELSE '{}' END || l.tell)::text, false) END
FROM "public"."latchwork_leave"($1, $2, $3, $4, $5, $6, $7, CASE WHEN set_config('lock_timeout', '900ms', true) IS NOT NULL THEN 'on' END) l,
  (SELECT current_setting('latchwork.tell', true) AS tell, current_setting('synchronous_standby_names') = '' AS alone OFFSET 0) s

-- Renew
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
    SELECT FROM "public"."latchwork" r WHERE r.k = c.k AND r.claim = c.claim FOR NO KEY UPDATE OF r SKIP LOCKED) r
), u AS (
  INSERT INTO "public"."latchwork" AS r (k, claim, ends, token, holder)
  SELECT DISTINCT ON (l.k) l.k, l.claim, clock_timestamp() + l.ttl::float8 * interval '1 microsecond', l.floor, l.holder FROM l
  ON CONFLICT (k) DO UPDATE SET ends = excluded.ends,
    token = greatest(r.token, excluded.token), holder = coalesce(excluded.holder, r.holder)
  WHERE r.claim = excluded.claim AND r.ends > clock_timestamp()
  RETURNING r.k, r.claim, r.token
)
SELECT c.n, u.token, (date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint, set_config('synchronous_commit', 'on', true)
FROM c LEFT JOIN u ON u.k = c.k AND u.claim = c.claim

-- Keep
SELECT * FROM "public"."latchwork_keep"($1, $2, $3, $4, $5, $6, CASE WHEN set_config('lock_timeout', '900ms', true) IS NOT NULL THEN 'on' END)

-- Look
-- What there is of keys. Changes nothing.
SELECT l.k, l.name, l.token, l.claim, l.mode, (date_part('epoch', l.ends - c.t) * 1e6::float8)::bigint,
  (date_part('epoch', c.t - l.asked) * 1e6::float8)::bigint, l.holder,
  (date_part('epoch', l.closed - c.t) * 1e6::float8)::bigint, l.closed_by,
  p.claim, p.mode, p.take, p.lim, p.held, (date_part('epoch', p.ends - c.t) * 1e6::float8)::bigint,
  (date_part('epoch', c.t - p.asked) * 1e6::float8)::bigint, p.holder
FROM (SELECT clock_timestamp() AS t OFFSET 0) c
CROSS JOIN "public"."latchwork" l LEFT JOIN "public"."latchwork_line" p ON p.k = l.k AND p.ends > c.t AND p.mode <> 9
WHERE l.k <> '' AND l.k = $1
ORDER BY l.k, p.held, p.pos

-- List
-- What there is of keys. Changes nothing.
SELECT l.k, l.name, l.token, l.claim, l.mode, (date_part('epoch', l.ends - c.t) * 1e6::float8)::bigint,
  (date_part('epoch', c.t - l.asked) * 1e6::float8)::bigint, l.holder,
  (date_part('epoch', l.closed - c.t) * 1e6::float8)::bigint, l.closed_by,
  p.claim, p.mode, p.take, p.lim, p.held, (date_part('epoch', p.ends - c.t) * 1e6::float8)::bigint,
  (date_part('epoch', c.t - p.asked) * 1e6::float8)::bigint, p.holder
FROM (SELECT clock_timestamp() AS t OFFSET 0) c
CROSS JOIN "public"."latchwork" l LEFT JOIN "public"."latchwork_line" p ON p.k = l.k AND p.ends > c.t AND p.mode <> 9
WHERE l.k <> '' AND l.k >= $1 AND ($2 IS NULL OR l.k < $2) AND (l.claim IS NOT NULL AND l.ends > c.t OR l.closed > c.t OR p.k IS NOT NULL)
ORDER BY l.k, p.held, p.pos

-- Notify
SELECT pg_notify(c, m), set_config('synchronous_commit', 'off', true) FROM unnest($1, $2) AS x (c, m)

-- Tell
-- Notifies the processes of which leave_and_tell.sql has kept messages, except for the one that asks. A statement of
-- its own: the commit of a notification takes a lock on the database, and nothing waits for the disk with it.
-- $1 the channel of the process that asks
SELECT CASE WHEN s.tell[n] <> $1::text THEN pg_notify('latchwork_15f024ae_' || lpad(to_hex(s.tell[n]::integer), 8, '0'), s.tell[n + 1]) END,
  set_config('latchwork.tell', '', false), set_config('synchronous_commit', 'off', true)
FROM (SELECT nullif(current_setting('latchwork.tell', true), '')::text[] AS tell OFFSET 0) s,
  generate_series(1, array_length(s.tell, 1), 2) n

-- Heal
SELECT * FROM "public"."latchwork_heal"($1, $2)

-- Sweep
-- Removes rows that nobody has used for an hour, from about 32 pages of the table, which are others each time. No token
-- goes back by it, whatever the clock does: the row with the empty key has a token that is larger than those that are
-- removed, and a new row begins with it (`floor`). That token is raised before, by a call of this that removes
-- nothing: a statement that makes a row has not read the one before for certain.
-- Says how many rows it has removed, and whether it has raised the token.
WITH c AS MATERIALIZED (
  SELECT (SELECT f.token FROM "public"."latchwork" f WHERE f.k = '') AS floor, (date_part('epoch', clock_timestamp() - interval '1 minute') * 1e6::float8)::bigint AS us
), raised AS (
  INSERT INTO "public"."latchwork" AS f (k, token, ends) SELECT '', c.us, 'epoch' FROM c WHERE set_config('lock_timeout', '900ms', true) IS NOT NULL AND coalesce(c.floor, 0::bigint) < c.us - 1800000000::bigint
  ON CONFLICT (k) DO UPDATE SET token = greatest(f.token, excluded.token)
  RETURNING f.k
), gone AS (
  DELETE FROM "public"."latchwork" d WHERE d.k IN (
    SELECT l.k FROM "public"."latchwork" l
    WHERE l.k = ANY (ARRAY(SELECT s.k FROM "public"."latchwork" s
        TABLESAMPLE SYSTEM (least(100::float8, 26214400::float8 / greatest(1::float8, pg_relation_size(E'"public"."latchwork"'::regclass)::float8)))))
      AND l.k <> '' AND NOT l.crowd AND l.ends < clock_timestamp() - interval '1 hour'
      AND (l.closed IS NULL OR l.closed < clock_timestamp() - interval '1 hour')
      AND l.token < (SELECT c.floor FROM c)
    FOR UPDATE SKIP LOCKED)
  RETURNING d.k
)
SELECT (SELECT count(*) FROM gone), EXISTS (SELECT FROM raised), set_config('synchronous_commit', 'off', true)
