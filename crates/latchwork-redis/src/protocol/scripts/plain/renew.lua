-- Starts the ttl of a held claim anew. ARGV: 1 id, 2 ttl (ms)
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, 5) ~= 'lw:x:' or string.sub(value, 8, 39) ~= ARGV[1] then
  return ''
end
-- Without its token it is no lock of anybody.
local token = string.match(value, '^:(%d+):', 40)
if not token or #token > 16 or tonumber(token) > 9007199254740991 then
  return ''
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token
