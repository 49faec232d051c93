-- Grants a claim, or says what is in its way and keeps its place.
--
-- ARGV: 1 value up to the token, 2 ttl (ms), 3 holder, 4 id, 5 mode, 6 permits to take (1 if it replaces
-- a hold, see common.lua), 7 limit, followed by m if it counts on a key with another limit, or by f if that of the key
-- counts,
-- 8 place (f: in line, b: only a mark, n: nothing), 9 floor, 10 nonce, 11 process or -,
-- 12 probation (ms), 13 channel prefix, 14 channel suffix, 15 whether it may stand in line from an
-- earlier try (1) or not (0), 16 what PUBSUB calls the number of those who listen (empty: do not
-- ask), 17 from which place in line on to serve, 18 when it joined the line (us, -1 if unknown)
--
-- The answer to a claim that is granted: 1, token, ttl (ms), the time, and whether the next in line
-- are to be warned (warn.lua). To one that is blocked: 0, why, when to look again (ms), how many are
-- before it, the time, who is in its way, from which place on to serve with another call, when it
-- joined the line (us; -1 each if there is none), and whether to warn. To one that is refused: 2 and the
-- shape that the key is in use with, or the mode of a hold that it cannot replace; 4, the counter and its value if all tokens were given; 5 and the value of
-- the key if that is no lock.
--
-- With three keys and four arguments (value up to the token, ttl, rest of the value, floor) it only
-- takes a free key for one claim: the answer is the token, or the value in the way, or nil if a line
-- must be asked.
if #KEYS == 3 then
  local redis, floor = redis, tonumber(ARGV[4])
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
--#include draw.lua
  local held = redis.call('SET', KEYS[1], ARGV[1] .. digits .. ARGV[3], 'NX', 'GET', 'PX', ARGV[2])
  if held then
    return held
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('DEL', KEYS[1])
    return false
  end
--#include keep.lua
  return token
end

--#include token.lua
--#include common.lua

local me = {
  id = ARGV[4],
  mode = ARGV[5],
  take = tonumber(ARGV[6]),
  of = tonumber(string.match(ARGV[7], '^%d+')),
  ttl = tonumber(ARGV[2]),
  holder = ARGV[3],
}
if me.take == 1 and me.mode ~= 'p' then
  me.beside = string.match(me.holder, BESIDE .. '(%x+)$')
end
local place = ARGV[8]

if hold.kind == 'm' then
  return { 5, hold.value }
end

-- What is held already keeps its token and starts its ttl anew.
local token = held_token(me.id)
if token then
  extend(me.id, me.mode, me.ttl)
  finish()
  return { 1, token, me.ttl, time[1], time[2] }
end

local shape = shape_of_others(me.id)
local in_line, entry
if ARGV[15] == '1' then
  in_line, entry = place_of(me.id, tonumber(ARGV[18]))
  me.joined = entry and tonumber(sub(entry, 148, 163))
end
if me.mode == 'p' then
  -- By which limit it is judged: its own, that of the others, or that of its place.
  local policy = sub(ARGV[7], -1)
  local others = shape and tonumber(sub(shape, 2))
  local kept = entry and tonumber(sub(entry, 138, 147))
  if policy == 'f' then
    me.of = kept or others or me.of
  elseif policy ~= 'm' then
    me.of = kept or me.of
  end
  if others and (policy == 'f' or policy == 'm' or kept) then
    shape = nil
  end
end
if shape and shape ~= shape_name(me.mode, me.of) then
  finish()
  return { 2, shape }
end
if me.beside then
  local was = hold.id == me.beside and hold.kind or is_member(me.beside) and 'r'
  if was and was .. me.mode ~= 'rw' and was .. me.mode ~= 'wr' then
    finish()
    return { 2, 'b' .. was }
  end
  local cause, by = not was and 'l', ''
  local first = was == 'r' and redis.call('LINDEX', KEYS[3], 0)
  local rival = first and waiter(first)
  if rival and rival.id ~= me.id and rival.beside and rival.ends > now and is_member(rival.beside) then
    cause, by = 'u', rival.holder
  end
  if cause then
    local more, pushed = nil, 0
    if entry then
      leave_line(entry)
      local _, _, left, sent = serve(nil)
      more, pushed = left, sent
    end
    finish()
    return { 0, cause, -1, -1, time[1], time[2], by, more or -1, -1, pushed }
  end
end
--#guard guard_place.lua
local granted, turn, more, pushed
if me.beside then
  -- It is ahead of the whole line: that waits for the hold which it replaces, or for one that does.
  pushed = 0
  granted = fits(me.mode, 0, 0, me.beside) and grant(me, me.ttl, entry, tonumber(ARGV[9]))
  if granted and entry then
    leave_line(entry)
  end
else
  granted, turn, more, pushed = serve(me, in_line, tonumber(ARGV[9]), ARGV[17])
end
if granted then
  finish()
  return { 1, granted, me.ttl, time[1], time[2], pushed }
end

if spent then
  finish()
  return { 4, KEYS[2], redis.call('GET', KEYS[2]) or '' }
end

-- Whoever stood before it may have left just now.
if in_line and sub(redis.call('LINDEX', KEYS[3], in_line) or '', 1, 32) ~= me.id then
  in_line, entry = place_of(me.id, me.joined or -1)
end
local ahead = -1
if place == 'f' then
  ahead = me.beside and 0 or in_line or redis.call('LLEN', KEYS[3])
elseif entry then
  leave_line(entry)
  local _, _, _, also = serve(nil)
  pushed = math.max(pushed, also)
end
if not turn and not me.beside and not fits(me.mode, me.take, me.of) then
  turn = { held = true }
end
local cause, retry, holder = what_blocks(turn, ahead, me.beside)
if place ~= 'n' then
  keep_place(me, place, in_line, retry)
end
finish()
if me.mode == 'r' and ahead > 0 then
  ahead = -1
end
local joined = place == 'f' and me.joined or -1
return { 0, cause, retry, ahead, time[1], time[2], holder, more or -1, joined, pushed }
