-- Takes many free keys, each for one claim alone: what a try with three keys does, for all who ask
-- at the same time. KEYS: the token counter, the locks, their lines. ARGV: for each claim its value
-- up to the token, its ttl (ms), the rest of its value and its floor.
--
-- The answer has for each claim its token, or the value in the way, or nil if a line must be asked.
local n = (#KEYS - 1) / 2
local counter = redis.call('INCRBY', KEYS[1], n)
local token = counter - n
if counter < 1e15 then
  local time = redis.call('TIME')
  token = time[1] * 1000000 + time[2]
end
local tokens = {}
for i = 1, n do
  -- In the order in which they asked: who asked later has the larger floor, and at each of several
  -- servers the floor is the token.
  token = math.max(token + 1, tonumber(ARGV[i * 4]))
  tokens[i] = token
end
if token > counter then
  redis.call('SET', KEYS[1], string.format('%.0f', token), 'PX', 604800000)
end
local no_lines = redis.call('EXISTS', unpack(KEYS, n + 2)) == 0
local answer = {}
for i = 1, n do
  if no_lines or redis.call('EXISTS', KEYS[n + 1 + i]) == 0 then
    local value = ARGV[i * 4 - 3] .. string.format('%.0f', tokens[i]) .. ARGV[i * 4 - 1]
    -- A name of another type must not stop the others.
    local held = redis.pcall('SET', KEYS[i + 1], value, 'NX', 'GET', 'PX', ARGV[i * 4 - 2])
    if type(held) == 'table' then
      answer[i] = false
    else
      answer[i] = held or tokens[i]
    end
  else
    answer[i] = false
  end
end
return answer
