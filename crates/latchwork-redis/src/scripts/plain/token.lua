-- The next token of a namespace: it starts at the server's time and is then only counted up.
local token = redis.call('INCR', KEYS[1])
if token < 1e15 then
  local time = redis.call('TIME')
  token = time[1] * 1000000 + time[2]
  redis.call('SET', KEYS[1], string.format('%.0f', token), 'PX', 604800000)
end
return token
