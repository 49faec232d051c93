-- Tells what there is of a key, and changes nothing. KEYS as for a try.
local answer = { redis.call('TYPE', KEYS[1])['ok'] }
answer[2] = answer[1] == 'string' and redis.call('GET', KEYS[1]) or ''
answer[3] = redis.call('PTTL', KEYS[1])
answer[4] = redis.call('GET', KEYS[2]) or '0'
answer[5] = redis.call('ZRANGE', KEYS[3], 0, -1)
answer[6] = redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES')
answer[7] = redis.call('ZRANGE', KEYS[6], 0, -1)
answer[8] = redis.call('HGETALL', KEYS[4])
answer[9] = redis.call('TIME')
return answer
