-- As leave.sql, and keeps in the session what is to be told, for the statement in the same flight: tell.sql. Another
-- request may come between the two, so it is added to what is there.
SELECT l.released, l.now_us, l.tell, CASE WHEN l.tell <> '{}' THEN set_config('latchwork.tell',
  (CASE WHEN length(s.tell) BETWEEN 1 AND 10000 THEN s.tell::text[] ELSE '{}' END || l.tell)::text, false) END
FROM @leave@($1, $2, $3, $4, $5, $6, $7, '@durable@') l, current_setting('latchwork.tell', true) s (tell)
