-- As the function alone, and keeps in the session what is to be told, for the statement in the same flight: tell.sql.
-- Another request may come between the two, so it is added to what is there. If commits wait for a synchronous standby,
-- nothing is kept: somebody may end that wait, and a grant that is not confirmed must not be told. The fourth column
-- says whether all is kept.
SELECT l.released, l.now_us, l.tell, s.alone, CASE WHEN s.alone AND l.tell <> '{}' THEN set_config('latchwork.tell',
  (CASE WHEN length(s.tell) BETWEEN 1 AND 10000 THEN s.tell::text[] ELSE '{}' END || l.tell)::text, false) END
FROM @leave@($1, $2, $3, $4, $5, $6, $7, @with_settings@) l,
  (SELECT current_setting('latchwork.tell', true) AS tell, current_setting('synchronous_standby_names') = '' AS alone OFFSET 0) s
