-- Deletes the key if this claim holds it. ARGV: 1 id
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, 5) ~= 'lw:x:' or string.sub(value, 8, 39) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
