-- Ends a claim that holds a key alone and that nobody waits for. No row: more must be asked. A release that
-- a crash loses leaves the key held until the claim's ttl is over, so it need not be durable.
-- $1 key, $2 claim
UPDATE @locks@ l SET claim = NULL, holder = NULL WHERE l.k = $1 AND l.claim = $2 AND NOT l.crowd AND @limited@
RETURNING l.ends > clock_timestamp(), @us@, set_config('synchronous_commit', 'off', true), @notify:l.k@
