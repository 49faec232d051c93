-- Notifies the processes of which leave_and_tell.sql has kept messages, except for the one that asks. A statement of
-- its own: the commit of a notification takes a lock on the database, and nothing waits for the disk with it.
-- $1 the channel of the process that asks
SELECT CASE WHEN s.tell[n] <> $1::text THEN pg_notify('@channel@' || lpad(to_hex(s.tell[n]::integer), 8, '0'), s.tell[n + 1]) END,
  set_config('latchwork.tell', '', false), set_config('synchronous_commit', 'off', true)
FROM (SELECT nullif(current_setting('latchwork.tell', true), '')::text[] AS tell OFFSET 0) s,
  generate_series(1, array_length(s.tell, 1), 2) n
