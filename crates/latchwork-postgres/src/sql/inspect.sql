-- What there is of keys. Changes nothing.
SELECT l.k, l.name, l.token, l.claim, l.mode, (date_part('epoch', l.ends - c.t) * 1e6::float8)::bigint,
  (date_part('epoch', c.t - l.asked) * 1e6::float8)::bigint, l.holder,
  (date_part('epoch', l.closed - c.t) * 1e6::float8)::bigint, l.closed_by,
  p.claim, p.mode, p.take, p.lim, p.held, (date_part('epoch', p.ends - c.t) * 1e6::float8)::bigint,
  (date_part('epoch', c.t - p.asked) * 1e6::float8)::bigint, p.holder
FROM (SELECT clock_timestamp() AS t OFFSET 0) c
CROSS JOIN @locks@ l LEFT JOIN @line@ p ON p.k = l.k AND p.ends > c.t AND p.mode <> 9
WHERE l.k <> '' AND @which@
ORDER BY l.k, p.held, p.pos
