-- Admits a token unless a larger one was admitted: a row, go on; no row, roll back. The server ends the
-- transaction if it is idle for longer than that: its process may have stopped.
-- $1 resource, $2 token, $3 limit
INSERT INTO @fence@ AS f (k, token) VALUES ($1, $2)
ON CONFLICT (k) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token
RETURNING set_config('idle_in_transaction_session_timeout', $3, true)
