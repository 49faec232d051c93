-- Somebody vouches that no lock is held: grants are free from now on. The first of KEYS is the
-- token counter. The answer tells whether the namespace had other lengths.
if guard.is_open then
  return { 0 }
end
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if last < guard.us then
  redis.call('SET', KEYS[1], string.format('%.0f', guard.us), 'PX', 604800000)
end
redis.call('SET', guard.key, guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length)
return guard.other or { 0 }
