-- Moves the counter, KEYS[2], on from `last` to `token`. It may end when the clock has come to its value, for what
-- begins at the clock then is above all that it gave: a week after that, or a week after it was made.
if last > 0 and token <= now_us then
  redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
else
  local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
  redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
end
