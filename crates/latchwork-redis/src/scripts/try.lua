-- Grants a claim, or says what is in its way and keeps its place.
--
-- ARGV: 1 value up to the token, 2 ttl (ms), 3 holder, 4 id, 5 mode, 6 permits to take, 7 limit,
-- 8 place (f: in line, b: only a mark, n: nothing), 9 floor, 10 stamp, 11 process or -,
-- 12 probation (ms), 13 channel prefix, 14 channel suffix, 15 publish command
--
-- With three keys and three arguments it only takes a free key for one claim: the answer is the
-- token, or the value in the way, or nil if a line must be asked.
if #KEYS == 3 then
  local token = redis.call('INCR', KEYS[2])
  if token < 1e15 then
    local time = redis.call('TIME')
    token = time[1] * 1000000 + time[2]
    redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', 604800000)
  end
  local value = ARGV[1] .. string.format('%.0f', token) .. ARGV[3]
  local held = redis.call('SET', KEYS[1], value, 'NX', 'GET', 'PX', ARGV[2])
  if held then
    return held
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('DEL', KEYS[1])
    return false
  end
  return token
end
--#include common.lua

local me = {
  id = ARGV[4],
  mode = ARGV[5],
  take = tonumber(ARGV[6]),
  of = tonumber(ARGV[7]),
  ttl = tonumber(ARGV[2]),
  holder = ARGV[3],
}
local place = ARGV[8]

-- What is held already keeps its token and starts its ttl anew.
local token = held_token(me.id)
if token then
  extend(me.id, me.mode, me.ttl)
  finish()
  return { 1, token, me.ttl, time[1], time[2] }
end

local shape = shape_of_others(me.id)
if shape and shape ~= shape_name(me.mode, me.of) then
  finish()
  return { 2, shape }
end

local in_line = call('ZSCORE', LINE, me.id)
local granted, turn = serve(me, in_line, tonumber(ARGV[9]))
if granted then
  finish()
  return { 1, granted, me.ttl, time[1], time[2] }
end

local ahead = -1
if place == 'f' then
  ahead = call('ZRANK', LINE, me.id) or call('ZCARD', LINE)
elseif in_line then
  leave_line(me.id)
  serve(nil)
end
local cause, retry, holder = what_blocks(turn, ahead)
if place ~= 'n' then
  keep_place(me, place, in_line, retry)
end
finish()
if me.mode == 'r' and ahead > 0 then
  ahead = -1
end
return { 0, cause, retry, ahead, time[1], time[2], holder }
