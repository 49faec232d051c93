-- Raises a counter of tokens (KEYS[1]), if there is one, to the server's clock.
local last = redis.call('GET', KEYS[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if last and tonumber(last) < now then
  redis.call('SET', KEYS[1], string.format('%.0f', now), 'PX', 604800000)
end
return 1
