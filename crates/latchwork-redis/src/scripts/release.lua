-- Ends a claim, held or waiting, and gives the key to the next in line.
--
-- ARGV: 1 value up to the id, 2 the id (empty: only serve the line), 3 linger (ms, 0 for none; `end`
-- ends no claim and opens a key that is closed), 13 to 15 and 17 to 19 as for a try. The answer ends
-- with the place in line from which another call has to go on, if any.
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
-- From one who holds alone to the first in line, if that one is there: the most frequent way.
-- Measured: without it contended scripts take twice as long, and 8 clients make 0.76 of the cycles
-- (cycle_cost).
local passed_over
local is_open = true
--#guard guard_open.lua
if is_open and ARGV[3] == '0' then
  local call, sub = redis.call, string.sub
  local value = call('GET', KEYS[1])
  local entries = value and sub(value, 8, 39) == ARGV[2] and call('LRANGE', KEYS[3], 0, 4)
  local id, look, ends, mode, p, tried, nonce, proc, holder
  if entries and entries[1] then
    id, look, ends, mode, p, tried, nonce, proc, holder = string.match(entries[1],
      '^(%x+) (%d+) (%d+) (%a) %d+ %d+ %d+ (%d+) (%d+) (%x+) (%S+) (.*)$')
  end
  if id and proc ~= '-' and mode == sub(value, 4, 4) then
    local time = call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    local now = math.floor(now_us / 1000)
    local promised = tonumber(ends) > now and tonumber(look) + 500 >= now -- LATE of common.lua
    for i = 2, #entries do
      local by = tonumber(string.match(entries[i], '^%x+ (%d+)'))
      promised = promised and by and by <= now + p * (i - 1) + 500 -- LATE again
    end
    if promised then
      -- First: a full server lets a script write after it has freed something.
      call('DEL', KEYS[1])
      local token = string.format('%.0f', draw_token(KEYS[2], 0, now_us))
      call('SET', KEYS[1], table.concat({ 'lw', mode, '+', id, token, holder }, ':'), 'PX', p)
      local since = string.format('%.0f', math.max(0, now_us - tonumber(tried)))
      local message = table.concat({ 'g', id, token, p, nonce, since, KEYS[1] }, ' ')
      local channel = ARGV[13] .. proc .. ARGV[14]
      -- As in common.lua.
      local count = ARGV[17] ~= '' and redis.pcall('PUBSUB', ARGV[17], channel)
      local heard = type(count) == 'table' and count[2]
      if heard ~= 0 then
        heard = redis.pcall(ARGV[15], channel, message)
      end
      if type(heard) == 'number' and heard > 0 then
        call('LPOP', KEYS[3])
        return { 1, time[1], time[2] }
      end
      call('DEL', KEYS[1])
      passed_over = true
    end
  end
end
--#include common.lua

local id, linger = ARGV[2], tonumber(ARGV[3])
local released = 1
if passed_over then
  hold = {}
elseif id == '' then
  released = 0
elseif ARGV[3] == 'end' then
  -- Of this kind only while nobody holds it: readers and permits keep theirs up to the last.
  released = hold.kind == 'c' and 1 or 0
  if released == 1 then
    call('DEL', KEY)
    hold, dirty = { closed = 0 }, false
  end
elseif hold.id == id then
  call('DEL', KEY) -- first, as above
  hold = { kind = linger > 0 and 'c' or nil, closed = linger > 0 and now + linger or 0 }
  dirty = linger > 0
elseif is_shared(hold.kind) and call('ZREM', HELD, id) == 1 then
  local take = string.match(call('HGET', CLAIMS, id) or '', '^m %a (%d+)')
  hold.taken = hold.taken - (tonumber(take) or 0)
  if linger > 0 then
    hold.closed = math.max(hold.closed, now + linger)
  end
  call('HDEL', CLAIMS, id)
  dirty = true
  settle_members()
else
  local _, entry = place_of(id, tonumber(ARGV[19]))
  if entry then
    leave_line(entry)
  elseif call('ZSCORE', MARKS, id) then
    forget_mark(id)
  else
    released = 0
  end
end
--#guard guard_release.lua
local _, _, more = serve(nil, nil, nil, ARGV[18])
finish()
return { released, time[1], time[2], more }
