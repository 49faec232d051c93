-- Ends a claim that holds the key alone, and gives the key to the first in line, if that one is
-- there: the most frequent release under contention. KEYS: 1 the lock, 2 the token counter, 3 the
-- line, 4 the marks. ARGV: 1 the id, 2 channel prefix, 3 channel suffix, 4 what PUBSUB calls the number
-- of those who listen (empty: do not ask), 5 the caller's own process, if its messages come on this
-- connection (or empty).
--
-- The answer: 1 it is done; 2 it is done, and the next in line is still to be warned (warn.lua); 3
-- the claim has ended and nobody holds the key, but somebody is in line; nil if the whole script
-- must be asked, and nothing was done.
--
-- Measured: as a short way inside the whole script, with 25 keys and arguments, it took 1.43 times as
-- many instructions of the server (callgrind).
local redis, sub = redis, string.sub
--#guard guard_ask.lua
local value = redis.call('GET', KEYS[1])
-- Beside a writer that replaces a hold, or is replaced, the other one stays.
if value and sub(value, 4, 4) == 'w' and string.find(value, '\31beside=', 58, true) then
  return false
end
if not value or sub(value, 8, 39) ~= ARGV[1] then
  return false
end
-- Two entries, so one waiter behind the first is checked: to check four takes 1.13 times as many
-- instructions (measured). What a stopped holder with a stopped successor costs the next is bounded by
-- the pause between two looks (REST).
local entries = redis.call('LRANGE', KEYS[3], 0, 1)
local entry, behind = entries[1], entries[2]
if not entry then
  if sub(value, 6, 6) == '+' and redis.call('EXISTS', KEYS[4]) == 1 then
    return false
  end
  return redis.call('DEL', KEYS[1])
end
local look, ends, tried, p =
  tonumber(sub(entry, 33, 45)), tonumber(sub(entry, 46, 58)), tonumber(sub(entry, 59, 74)),
  tonumber(sub(entry, 76, 79))
local mode, process = sub(entry, 75, 75), sub(entry, 80, 95)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
if mode ~= sub(value, 4, 4) or not look or not ends or not tried or not p or sub(process, 1, 1) == '-'
  or ends <= now or look + @LATE@ < now or (mode == 'w' and sub(entry, 137, 137) == '1') then
  return false
end
local channel = ARGV[2] .. process .. ARGV[3]
-- As in serve.lua.
local count = ARGV[4] ~= '' and redis.pcall('PUBSUB', ARGV[4], channel)
if type(count) == 'table' and count[2] == 0 then
  return false
end
local floor = 0
--#include draw.lua
-- First: a full server lets a script write after it has freed something.
redis.call('DEL', KEYS[1])
--#include keep.lua
local id = sub(entry, 1, 32)
redis.call('SET', KEYS[1], 'lw:' .. mode .. ':+:' .. id .. ':' .. digits .. ':' .. sub(entry, 164), 'PX', p)
-- Redis writes first to the client whose output has begun last. A message to the caller begins the
-- caller's output, so the waiter's message leaves before the caller's answer. Measured: a hand-off after
-- 200 ms takes 0.78 of the time (example hand_off, medians of 507 and 687 us).
if ARGV[5] ~= '' then
  redis.pcall('PUBLISH', ARGV[2] .. ARGV[5] .. ARGV[3], '')
end
local since = math.max(0, now_us - tried)
local message = 'g ' .. id .. ' ' .. digits .. ' ' .. p .. ' ' .. sub(entry, 96, 127) .. ' ' .. since
  .. ' ' .. KEYS[1]
local heard = redis.pcall('PUBLISH', channel, message)
if type(heard) ~= 'number' or heard == 0 then
  redis.call('DEL', KEYS[1])
  return 3
end
redis.call('LPOP', KEYS[3])
if behind and (tonumber(sub(behind, 33, 45)) or 0) > now + p + @LATE@ then
  return 2
end
return 1
