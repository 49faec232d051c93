-- Tells what there is of a key, and changes nothing. KEYS as for a try.
return {
  redis.call('TYPE', KEYS[1])['ok'],
  redis.call('TYPE', KEYS[1])['ok'] == 'string' and redis.call('GET', KEYS[1]) or '',
  redis.call('PTTL', KEYS[1]),
  redis.call('LRANGE', KEYS[3], 0, -1),
  redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
  redis.call('ZRANGE', KEYS[6], 0, -1),
  redis.call('HGETALL', KEYS[4]),
  redis.call('TIME'),
}
