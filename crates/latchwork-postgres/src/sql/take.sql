-- Takes a free key for one claim alone: a row is the grant, no row that more must be asked. All that decides
-- is evaluated after the lock of the row, which ON CONFLICT takes; what is before it only saves a key that
-- is held the lock and its commit.
-- $1 key, $2 name, $3 claim, $4 mode, $5 ttl (us), $6 floor, $7 holder, $8 nonce of the guard
INSERT INTO @locks@ AS l (k, name, claim, mode, ends, asked, token, holder)
SELECT $1, $2, $3, $4, clock_timestamp() + $5::float8 * interval '1 microsecond', clock_timestamp(), greatest(@us@, $6, @floor@), $7
WHERE @hasty@ AND NOT EXISTS (SELECT FROM @locks@ h WHERE h.k = $1
    AND (h.crowd OR h.claim <> $3 AND h.ends > clock_timestamp() OR h.closed > clock_timestamp()))
  AND @guarded@
ON CONFLICT (k) DO UPDATE SET
  claim = excluded.claim, mode = excluded.mode, holder = excluded.holder,
  ends = clock_timestamp() + $5::float8 * interval '1 microsecond',
  asked = CASE WHEN l.claim = excluded.claim AND l.ends > clock_timestamp() THEN l.asked ELSE clock_timestamp() END,
  token = CASE WHEN l.claim = excluded.claim AND l.ends > clock_timestamp() THEN l.token
    ELSE greatest(l.token + 1, @us@, $6) END
WHERE NOT l.crowd AND (l.claim = excluded.claim AND l.ends > clock_timestamp()
  OR (l.claim IS NULL OR l.ends <= clock_timestamp()) AND (l.closed IS NULL OR l.closed <= clock_timestamp()))
RETURNING l.token, @us@, set_config('synchronous_commit', '@durable@', true), @notify:l.k@, @rechecked@
