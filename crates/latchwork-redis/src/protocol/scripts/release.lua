-- Ends a claim, held or waiting, and gives the key to the next in line.
--
-- ARGV: 1 value up to the id, 2 the id (empty: only serve the line), 3 linger (ms, 0 for none; `end`
-- ends no claim and opens a key that is closed; `limit` ends no claim and sets the limit of permits), 4 the
-- holder that closes it, or the limit, 13, 14 and 16 to 18 as for a try.
--
-- The answer: whether it was held, the time, whether the next in line are still to be warned
-- (warn.lua), and the place in line from which another call has to go on (-1 if none). For a limit: 1 if it
-- was set, 0 if nobody uses the key, 2 if it is used as something else; and at the end the limit before or
-- what the key is used as, and the permits held.
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

--#include token.lua
--#include common.lua

local id, linger = ARGV[2], tonumber(ARGV[3])
local released, before, taken = 1, nil, nil
if ARGV[3] == 'limit' then
  local of = tonumber(ARGV[4])
  before = shape_of_others('')
  released = before == nil and 0 or tonumber(sub(before, 2)) and 1 or 2
  if released == 1 then
    before, taken = sub(before, 2), '0'
    if hold.kind == 'p' then
      hold.of, taken, dirty = of, text(hold.taken), true
    end
    local last = redis.call('LLEN', KEYS[3]) - 1
    for from = 0, last, 64 do
      for i, entry in ipairs(redis.call('LRANGE', KEYS[3], from, from + 63)) do
        if sub(entry, 75, 75) == 'p' then
          entry = sub(entry, 1, 137) .. string.format('%010.0f', of) .. sub(entry, 148)
          redis.call('LSET', KEYS[3], from + i - 1, entry)
        end
      end
    end
  end
elseif id == '' then
  released = 0
elseif ARGV[3] == 'end' then
  -- Of this kind only while nobody holds it: readers and permits keep theirs up to the last.
  released = hold.kind == 'c' and 1 or 0
  if released == 1 then
    redis.call('DEL', KEYS[1])
    hold, dirty = { closed = 0 }, false
  end
elseif hold.id == id and hold.beside then
  redis.call('ZREM', KEYS[5], id)
  hold = { kind = 'r', closed = linger > 0 and now + linger or 0, holder = ARGV[4], of = 0, taken = 0 }
  dirty = true
elseif hold.id == id then
  redis.call('DEL', KEYS[1]) -- first: a full server lets a script write after it has freed something
  hold = { closed = 0 }
  if linger > 0 then
    hold = { kind = 'c', closed = now + linger, holder = ARGV[4] }
  end
  dirty = linger > 0
elseif (is_shared(hold.kind) or hold.beside) and redis.call('ZREM', KEYS[5], id) == 1 then
  local take = string.match(redis.call('HGET', KEYS[4], id) or '', '^m %a (%d+)')
  hold.taken = (hold.taken or 0) - (tonumber(take) or 0)
  -- The value of a writer has no room for a linger of the hold beside it.
  if not hold.beside and linger > 0 and now + linger > hold.closed then
    -- Who closes it is kept only if nobody is left: the values of members have no room for a name.
    hold.closed, hold.holder = now + linger, ARGV[4]
  end
  redis.call('HDEL', KEYS[4], id)
  dirty = true
  settle_members()
else
  local _, entry = place_of(id, tonumber(ARGV[18]))
  if entry then
    leave_line(entry)
  elseif redis.call('ZSCORE', KEYS[6], id) then
    forget_mark(id)
  else
    released = 0
  end
end
--#guard guard_release.lua
local _, _, more, pushed = serve(nil, nil, nil, ARGV[17])
finish()
return { released, time[1], time[2], pushed, more or -1, before, taken }
