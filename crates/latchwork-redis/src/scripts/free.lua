-- Frees many keys that one claim each holds alone and nobody waits for: what a release with one key
-- does, for all who release at the same time. ARGV: for each its value up to the id.
--
-- The answer has a letter for each: 1 if it was freed, 2 if there is more to do.
local values = redis.call('MGET', unpack(KEYS))
local mine, answer = {}, {}
for i = 1, #KEYS do
  local value = values[i]
  if value and string.sub(value, 1, 39) == ARGV[i] then
    mine[#mine + 1] = KEYS[i]
    answer[i] = '1'
  else
    answer[i] = '2'
  end
end
if #mine > 0 then
  redis.call('DEL', unpack(mine))
end
return table.concat(answer)
