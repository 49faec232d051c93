-- Tells what there is of a key, and changes nothing.
local kind = redis.call('TYPE', KEYS[1])['ok']
return { kind, kind == 'string' and redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]) }
