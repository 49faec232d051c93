-- Takes a free key, without a token yet, or says what is in the way.
-- ARGV: 1 value, 2 ttl (ms), 3 id
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return { 1, '' }
end
local value = redis.call('GET', KEYS[1])
local is_own = string.sub(value, 1, 5) == 'lw:x:' and string.sub(value, 8, 39) == ARGV[3]
local token = string.match(value, '^:(%d+):', 40)
if is_own and token and #token == 16 and tonumber(token) <= 9007199254740991 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { 1, string.sub(value, 41, 56) }
end
return { 0, value, redis.call('PTTL', KEYS[1]) }
