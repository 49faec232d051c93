-- Writes the token of a claim that still holds the key, and tells which one it has then.
-- ARGV: 1 id, 2 token
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 8, 39) ~= ARGV[1] then
  return ''
end
if string.sub(value, 41, 56) ~= '0000000000000000' then
  return string.sub(value, 41, 56)
end
redis.call('SETRANGE', KEYS[1], 40, ARGV[2])
return ARGV[2]
