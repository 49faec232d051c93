-- Frees many keys that one claim each holds alone and nobody waits for: what a release with one key
-- does, for all who release at the same time. ARGV: for each its value up to the id.
--
-- The answer has a letter for each: 1 if it was freed, 2 if there is more to do.
local redis, KEYS = redis, KEYS
local n, answer = #KEYS, {}
-- 16 at a time, or 8 or 4, have the places of the first ones: a key has to be written KEYS[n].
local first = 1
while first <= n do
  local left = n - first + 1
  local width = left > 12 and 16 or left > 4 and 8 or 4
  local last = math.min(first + width - 1, n)
  for place = 1, width do
    local i = first + place - 1
    if i > n then
      KEYS[place] = KEYS[1]
    elseif first > 1 then
      KEYS[place] = KEYS[i]
    end
  end
  local values
  if width == 16 then
    values = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8],
      KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16])
  elseif width == 8 then
    values = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
  else
    values = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
  end
  local mine = 0
  for i = first, last do
    local value = values[i - first + 1]
    if value and string.sub(value, 1, 39) == ARGV[i] then
      mine = mine + 1
      answer[i] = '1'
    else
      answer[i] = '2'
    end
  end
  if mine < last - first + 1 then
    for i = first, last do
      KEYS[1] = KEYS[i - first + 1]
      if answer[i] == '1' then
        redis.call('DEL', KEYS[1])
      end
    end
  elseif width == 16 then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8],
      KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16])
  elseif width == 8 then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8])
  else
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
  end
  first = last + 1
end
return table.concat(answer)
