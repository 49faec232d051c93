-- The next token of a namespace: above all that it gave, and by the clock above those that the server
-- may have lost.
local token = redis.call('INCR', KEYS[1])
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
if token < now_us then
  token = now_us
  redis.call('SET', KEYS[1], string.format('%.0f', token), 'PX', 604800000)
end
return token
