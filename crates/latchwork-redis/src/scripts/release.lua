-- Ends a claim, held or waiting, and gives the key to the next in line.
--
-- ARGV: 1 value up to the id, 2 the id, 3 linger (ms, 0 for none), 13 to 15 as for a try
--
-- With one key it only frees a key that one claim holds alone and nobody waits for; the answer is
-- 2 if there is more to do.
if #KEYS == 1 then
  local value = redis.call('GET', KEYS[1])
  if value and string.sub(value, 1, 39) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
  end
  return 2
end
--#include common.lua

local id, linger = ARGV[2], tonumber(ARGV[3])
local released = 1
if hold.id == id then
  -- First: a full server lets a script write after it has freed something.
  call('DEL', KEY)
  hold = { kind = linger > 0 and 'c' or nil, closed = now + linger }
  dirty = linger > 0
elseif held_token(id) then
  local take = string.match(call('HGET', CLAIMS, id), '^m %a (%d+)')
  hold.taken = hold.taken - tonumber(take)
  if linger > 0 then
    hold.closed = math.max(hold.closed, now + linger)
  end
  call('ZREM', HELD, id)
  call('HDEL', CLAIMS, id)
  dirty = true
  settle_members()
elseif call('ZREM', LINE, id) + call('ZREM', MARKS, id) > 0 then
  call('HDEL', CLAIMS, id)
else
  released = 0
end
serve(nil)
finish()
return { released, time[1], time[2] }
