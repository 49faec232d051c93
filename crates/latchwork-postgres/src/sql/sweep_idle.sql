-- Removes rows that nobody has used for an hour. Tokens go on rising: the next one is at least the clock's time.
DELETE FROM @locks@ d WHERE d.k IN (
  SELECT l.k FROM @locks@ l
  WHERE l.k <> '' AND NOT l.crowd AND l.ends < clock_timestamp() - interval '1 hour'
    AND (l.closed IS NULL OR l.closed < clock_timestamp() - interval '1 hour')
    AND l.token < (date_part('epoch', clock_timestamp() - interval '1 minute') * 1e6::float8)::bigint
  LIMIT 10000 FOR UPDATE SKIP LOCKED)
RETURNING set_config('synchronous_commit', 'off', true)
