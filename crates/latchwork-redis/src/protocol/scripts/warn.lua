-- Tells the next in line to look when all before them may not have come, from the one who was granted
-- the key on, unless they promised to look about as early. Whoever is further behind looks by itself
-- about as early (REST). Sent after a release that has granted the key, and not
-- awaited: whoever is not told looks by itself as well. KEYS: 1 the lock, 2 the line. ARGV: 1 channel
-- prefix, 2 channel suffix, 3 what PUBSUB calls the number of those who listen (empty: do not ask).
local redis, sub = redis, string.sub
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local by = now + left
local warned = 0
for i, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, 3)) do
  local look, p = tonumber(sub(entry, 33, 45)), tonumber(sub(entry, 76, 79))
  if not look or not p then
    break
  end
  if look > by + @LATE@ and sub(entry, 80, 80) ~= '-' then
    local channel = ARGV[1] .. sub(entry, 80, 95) .. ARGV[2]
    -- As in serve.lua.
    local count = ARGV[3] ~= '' and redis.pcall('PUBSUB', ARGV[3], channel)
    local heard = type(count) == 'table' and count[2]
    if heard ~= 0 then
      local after = string.format('%.0f', by - now)
      heard = redis.pcall('PUBLISH', channel, 'l ' .. sub(entry, 1, 32) .. ' ' .. after)
    end
    if type(heard) == 'number' and heard > 0 then
      redis.call('LSET', KEYS[2], i - 1, string.format('%s%013.0f%s', sub(entry, 1, 32), by, sub(entry, 46)))
      warned = warned + 1
    end
  end
  by = by + p
end
return warned
