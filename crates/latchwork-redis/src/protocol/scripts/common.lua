-- What the whole scripts share. KEYS: 1 the lock, 2 the token counter, 3 the line, 4 the details of
-- members and marks, 5 the members that hold together, 6 the marks of those who only want to be
-- woken.
--
-- Some hosted services read the text of a script before they run it. They take a call whose command is
-- written out and whose keys are written KEYS[n], with a number: no variable, no expression, no unpack and
-- no call inside a call. All scripts are written so (h250_no_script_has_a_key_that_is_not_written_out).
--
-- The lock is a string, and it exists while anybody holds the key:
--   lw:x:<flag>:<id>:<token>:<holder>   one claim alone (w: as a writer); flag + if somebody may
--     wait, flag . if the holder, in plain mode, will tell nobody when it goes
--   lw:r:-:<closed until>               readers
--   lw:p:-:<closed until>:<limit>:<taken>  permits
--   lw:c:-:<holder>                     closed: this holder asked for a linger, or one without a name
-- Anything else that starts with lw: is no lock, and value.rs judges alike.
-- The line is a list, the first in line first. An entry has fields of fixed widths, without anything
-- between them, so that each script cuts out those it needs:
--   1 to 32 id, 33 to 45 looks by (ms), 46 to 58 ends (ms), 59 to 74 time of its try (us), 75 mode,
--   76 to 79 probation (ms), 80 to 95 process (- if nobody can tell it), 96 to 127 nonce, 128 to 137
--   permits to take, 138 to 147 limit, 148 to 163 when it joined the line (us), and from 164 on the
--   holder
-- The line is in the order in which its entries joined it, unless the server's clock was set back.
-- The nonce is what the process believes a grant by: only the grant is published with it.
-- Details of a mark are written in the same way, those of a member:
--   m <mode> <take> <token> <holder>
-- A reader or writer that takes 1 permit replaces a hold: its holder ends in BESIDE and the id of that hold.
-- While two holds of a holder are there, the lock is that of the writer, whose value has BESIDE in it. The
-- members are both, without details of the writer: each has its end there, and the lock ends with the last.
-- A version that does not know this drops the members. So it ends the reader's hold, and nobody gets in.
local redis, sub = redis, string.sub
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- What ends at a moment has ended when that is over: parts of a millisecond are cut off here, and a
-- lease must not lose them.
local now = math.floor(now_us / 1000)

-- These times (ms) are explained in scripts.rs, which fills them in.
local LATE = @LATE@
local REST = @REST@
local SPREAD = @SPREAD@
-- The largest time (ms) that its field in an entry can have.
local LAST = 9999999999999
-- How many of those that have ended one call drops: the server does nothing else meanwhile.
local ENDED = 256

local BESIDE = '\31beside='

local hold = {}
local dirty = false

local function text(number)
  return string.format('%.0f', number)
end

local function shape_name(mode, of)
  if mode == 'x' then
    return 'x'
  elseif mode == 'p' then
    return 'p' .. text(of)
  end
  return 'r'
end

local function waiter(entry)
  local w = {
    id = sub(entry, 1, 32),
    look = tonumber(sub(entry, 33, 45)),
    ends = tonumber(sub(entry, 46, 58)),
    tried = tonumber(sub(entry, 59, 74)),
    mode = sub(entry, 75, 75),
    p = tonumber(sub(entry, 76, 79)),
    proc = sub(entry, 80, 80) == '-' and '-' or sub(entry, 80, 95),
    nonce = sub(entry, 96, 127),
    take = tonumber(sub(entry, 128, 137)),
    of = tonumber(sub(entry, 138, 147)),
    joined = tonumber(sub(entry, 148, 163)),
    holder = sub(entry, 164),
  }
  if w.take == 1 and w.mode ~= 'p' then
    w.beside = string.match(w.holder, BESIDE .. '(%x+)$')
  end
  return w.look and w.ends and w.tried and w.p and w.take and w.of and w.joined and w
end

local function entry_of(w)
  return string.format('%s%013.0f%013.0f%016.0f%s%04.0f%-16s%s%010.0f%010.0f%016.0f%s', w.id, w.look,
    math.min(w.ends, LAST), w.tried, w.mode, w.p, w.proc, w.nonce, w.take, w.of, w.joined, w.holder)
end

-- The place in line of a claim among these, and its entry; else how many there are.
local function found(id, from, to)
  local entries = redis.call('LRANGE', KEYS[3], from, to)
  for i = #entries, 1, -1 do
    if sub(entries[i], 1, 32) == id then
      return from + i - 1, entries[i]
    end
  end
  return nil, #entries
end

-- Where a claim stands in line that joined it then (us, -1 if unknown), and its entry. Where the
-- entries are not in this order, because the server's clock was set back, a pass over the line finds it.
-- Measured in a line of 9,000, the whole look, beside a search from the place last told: 0.2 ms however far the
-- line has moved; that one 0.5 to 2.9 ms after 300 places and 2.9 to 4.7 ms after 4,500.
local function place_of(id, joined)
  local low, high = 0, redis.call('LLEN', KEYS[3])
  if joined >= 0 then
    while high - low > 16 do
      local middle = math.floor((low + high) / 2)
      if (tonumber(sub(redis.call('LINDEX', KEYS[3], middle), 148, 163)) or 0) <= joined then
        low = middle
      else
        high = middle
      end
    end
    -- Some may have joined in the same microsecond.
    local place, entry = found(id, math.max(0, low - 16), high - 1)
    if place then
      return place, entry
    end
  end
  local from = 0
  while true do
    local place, entry = found(id, from, from + 63)
    if place then
      return place, entry
    elseif entry < 64 then
      return nil
    end
    from = from + 64
  end
end

local function leave_line(entry)
  redis.call('LREM', KEYS[3], 1, entry)
end

local function forget_mark(id)
  if redis.call('ZREM', KEYS[6], id) == 1 then
    redis.call('HDEL', KEYS[4], id)
  end
end

-- Keeps the details at least so long (ms).
local function keep_details(length)
  if redis.call('PTTL', KEYS[4]) < length then
    redis.call('PEXPIRE', KEYS[4], length)
  end
end

local function is_shared(mode)
  return mode == 'r' or mode == 'p'
end

-- Reads the key, and drops members whose ttl is over. Of a value that begins like a lock and does not go on
-- like one the kind is m: nobody gets past it, and nothing is changed. Numbers that are longer would not be exact.
do
  local value = redis.call('GET', KEYS[1])
  hold.value = value
  -- A helper of another type stops the script here, before it has written anything.
  redis.call('LLEN', KEYS[3])
  redis.call('HLEN', KEYS[4])
  redis.call('ZCARD', KEYS[6])
  local members = redis.call('ZCARD', KEYS[5])
  if value then
    local kind, rest = string.match(value, '^lw:([xwrpc]):[-+.]:(.*)$')
    hold.kind = kind or sub(value, 1, 3) == 'lw:' and 'm' or 'f'
    if kind == 'x' or kind == 'w' then
      hold.id, hold.token, hold.holder = string.match(rest, '^(%x+):(%d+):(.*)$')
      hold.flag = sub(value, 6, 6)
      if not hold.id or #hold.id ~= 32 or #hold.token > 16 or tonumber(hold.token) > 9007199254740991 then
        hold = { kind = 'm', value = value }
      end
    elseif kind == 'c' then
      hold.closed = now + redis.call('PTTL', KEYS[1])
      hold.holder = rest
    elseif kind then
      local closed, of, taken = string.match(rest, '^(%d+)$'), '0', '0'
      if kind == 'p' then
        closed, of, taken = string.match(rest, '^(%d+):(%d+):(%d+)$')
      end
      if not closed or #closed > 15 or #of > 10 or tonumber(of) > 4294967295 or #taken > 10 then
        hold.kind = 'm'
      end
      hold.closed, hold.of, hold.taken = tonumber(closed), tonumber(of), tonumber(taken)
    end
    if kind == 'w' and hold.id and members > 0 and string.find(value, BESIDE, 58, true) then
      local ends = tonumber(redis.call('ZSCORE', KEYS[5], hold.id) or nil)
      hold.beside = ends and ends >= now
      if ends and not hold.beside then
        hold = { kind = 'r', closed = 0, of = 0, taken = 0 }
        dirty = true
      end
    end
    if is_shared(hold.kind) or hold.beside then
      local over = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now - 1, 'LIMIT', 0, ENDED)
      hold.more = #over == ENDED
      for _, id in ipairs(over) do
        local take = string.match(redis.call('HGET', KEYS[4], id) or '', '^m %a (%d+)')
        hold.taken = (hold.taken or 0) - (tonumber(take) or 0)
        redis.call('ZREM', KEYS[5], id)
        redis.call('HDEL', KEYS[4], id)
        dirty = true
      end
    end
  end
  if members > 0 and hold.kind ~= 'm' and not is_shared(hold.kind) and not hold.beside then
    -- The lock was deleted under its members: they hold nothing any more.
    local gone = redis.call('ZRANGE', KEYS[5], 0, 999)
    for _, id in ipairs(gone) do
      redis.call('HDEL', KEYS[4], id)
    end
    redis.call('DEL', KEYS[5])
  end
end

-- The members are gone: the key is free, or stays closed. A writer that is left alone is no member.
local function settle_members()
  if hold.beside and redis.call('ZCARD', KEYS[5]) == 1 then
    local ends = redis.call('ZSCORE', KEYS[5], hold.id)
    redis.call('PEXPIRE', KEYS[1], ends - now)
    redis.call('DEL', KEYS[5])
    hold.beside = nil
  elseif is_shared(hold.kind) and redis.call('ZCARD', KEYS[5]) == 0 then
    dirty = true
    hold.kind = hold.closed >= now and 'c' or nil
  end
end
settle_members()

-- Writes the key if what it holds has changed.
local function finish()
  if not dirty then
    return
  elseif hold.kind == nil then
    redis.call('DEL', KEYS[1])
  elseif hold.kind == 'c' then
    redis.call('SET', KEYS[1], 'lw:c:-:' .. (hold.holder or ''), 'PX', math.max(1, hold.closed - now))
  elseif is_shared(hold.kind) then
    local last = tonumber(redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2])
    local value = 'lw:' .. hold.kind .. ':-:' .. text(hold.closed or 0)
    if hold.kind == 'p' then
      value = value .. ':' .. text(hold.of) .. ':' .. text(hold.taken)
    end
    redis.call('SET', KEYS[1], value, 'PX', math.max(1, last - now, (hold.closed or 0) - now))
    if redis.call('PTTL', KEYS[5]) < last - now then
      redis.call('PEXPIRE', KEYS[5], last - now)
    end
    keep_details(last - now)
  elseif hold.beside then
    local length = redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2] - now
    redis.call('PEXPIRE', KEYS[1], length)
    redis.call('PEXPIRE', KEYS[5], length)
    keep_details(length)
  end
end

-- Whether a claim holds the key and is among the members.
local function is_member(id)
  return (is_shared(hold.kind) or hold.beside) and redis.call('ZSCORE', KEYS[5], id)
end

local function held_token(id)
  if hold.id == id then
    return hold.token
  end
  if is_member(id) then
    return string.match(redis.call('HGET', KEYS[4], id) or '', '^m %a %d+ (%d+)')
  end
  return nil
end

local function extend(id, mode, ttl)
  if is_shared(mode) or hold.beside then
    redis.call('ZADD', KEYS[5], now + ttl, id)
    dirty = true
  else
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
end

-- Whether a claim is compatible with all that hold the key but the hold that it replaces. Permits are judged by the
-- claim's own limit.
local function fits(mode, take, of, beside)
  if hold.kind == nil then
    return mode ~= 'p' or take <= of
  elseif (hold.closed or 0) >= now then
    return false
  elseif beside then
    return hold.id == beside or (hold.kind == 'r' and redis.call('ZCARD', KEYS[5]) == 1)
  elseif hold.kind == 'r' then
    return mode == 'r'
  elseif hold.kind == 'p' then
    return mode == 'p' and hold.taken + take <= of
  end
  return false
end

-- Drops marks that have ended, and waiters that have up to the first who has not.
local function drop_ended()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now, 'LIMIT', 0, ENDED)) do
    forget_mark(id)
  end
  for _ = 1, ENDED do
    local entry = redis.call('LINDEX', KEYS[3], 0)
    local w = entry and waiter(entry)
    if not entry or (w and w.ends > now) then
      return
    end
    redis.call('LPOP', KEYS[3])
  end
end

local function shape_of_others(id)
  local kind = hold.kind
  if (kind == 'x' or kind == 'w') and hold.id ~= id then
    return shape_name(kind, 0)
  elseif is_shared(kind) then
    return shape_name(kind, hold.of)
  end
  drop_ended()
  local others = redis.call('LRANGE', KEYS[3], 0, 1)
  for _, mark in ipairs(redis.call('ZRANGE', KEYS[6], 0, 1)) do
    others[#others + 1] = redis.call('HGET', KEYS[4], mark) or ''
  end
  for _, entry in ipairs(others) do
    local w = waiter(entry)
    if w and w.id ~= id then
      return shape_name(w.mode, w.of)
    end
  end
  return nil
end

-- Whether a claim was refused because all tokens were given.
local spent = false

-- Makes a claim a holder for this long (ms). In line it still is until that has succeeded. Without a token
-- for it nothing changes, and the answer is nil.
local function grant(c, length, in_line, floor)
  local _, token = draw_token(floor or 0, now_us)
  if not token then
    spent = true
    return nil
  end
  forget_mark(c.id) -- before a member's details take the place of the mark's
  if c.beside and is_shared(c.mode) then
    local left = redis.call('PTTL', KEYS[1])
    if not hold.beside then
      redis.call('ZADD', KEYS[5], now + left, hold.id)
    end
    redis.call('ZADD', KEYS[5], now + length, c.id)
    redis.call('HSET', KEYS[4], c.id, table.concat({ 'm', c.mode, '0', token, c.holder }, ' '))
    hold.holder = hold.holder .. BESIDE .. c.id
    local value = table.concat({ 'lw', hold.kind, '+', hold.id, hold.token, hold.holder }, ':')
    redis.call('SET', KEYS[1], value, 'PX', math.max(1, left))
    hold.flag, hold.beside, dirty = '+', true, true
    return token
  elseif is_shared(c.mode) then
    redis.call('ZADD', KEYS[5], now + length, c.id)
    redis.call('HSET', KEYS[4], c.id, table.concat({ 'm', c.mode, text(c.take), token, c.holder }, ' '))
    if not is_shared(hold.kind) then
      hold.closed, hold.taken = 0, 0
    end
    hold.of, hold.taken = c.of, hold.taken + c.take
    dirty = true
  else
    local others = redis.call('LLEN', KEYS[3]) - (in_line and 1 or 0)
    local flag = (c.beside or others > 0 or redis.call('EXISTS', KEYS[6]) == 1) and '+' or '-'
    local value = table.concat({ 'lw', c.mode, flag, c.id, token, c.holder }, ':')
    redis.call('SET', KEYS[1], value, 'PX', length)
    hold.id, hold.token, hold.holder, hold.flag = c.id, token, c.holder, flag
    hold.beside, dirty = c.beside, c.beside
    if c.beside then
      redis.call('ZADD', KEYS[5], now + length, c.id)
    end
  end
  hold.kind = c.mode
  return token
end

-- Why a claim at this place is blocked, when it should look again (ms, -1 if unknown), and who
-- holds the key: of a client of another kind, '-' if it has set no ttl.
local function what_blocks(turn, ahead, beside)
  local kind = hold.kind
  local behind = math.min(math.max(ahead, 0) * 10, SPREAD)
  if kind == 'f' then
    local left = redis.call('PTTL', KEYS[1])
    local ttl = left >= 0 and '' or '-'
    if ahead <= 0 then
      return 'f', left >= 0 and math.min(200, left + 1) or 200, ttl
    end
    return 'f', left >= 0 and left + 1 + behind or -1, ttl
  elseif (hold.closed or 0) >= now then
    return 'c', math.max(1, hold.closed - now), hold.kind == 'c' and hold.holder or ''
  elseif kind == 'x' or kind == 'w' then
    local left = redis.call('PTTL', KEYS[1])
    if hold.flag == '.' and ahead <= 0 then
      return 'h', left >= 0 and math.min(200, left + 1) or 200, hold.holder
    end
    return 'h', left >= 0 and left + 1 + behind or -1, hold.holder
  elseif turn and turn.look then
    return 'q', math.max(1, turn.look + LATE - now + 1), turn.holder
  elseif is_shared(kind) then
    local first = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
    if first[1] == beside then
      first = redis.call('ZRANGE', KEYS[5], 1, 1, 'WITHSCORES')
    end
    local holder = string.match(redis.call('HGET', KEYS[4], first[1]) or '', '^m %a %d+ %d+ (.*)$')
    return 'h', math.max(1, tonumber(first[2]) - now + 1 + behind), holder or ''
  elseif turn then
    return 'h', -1, '' -- it, or one before it, wants more permits than the limit
  end
  return 'q', 100, ''
end

-- When a waiter will look by itself, if it is told to look after `retry` (ms).
local function promise(ttl, retry)
  local rest = math.min(math.floor(ttl / 3), REST)
  return now + (retry >= 0 and math.min(rest, retry) or rest)
end

local function keep_place(me, place, in_line, retry)
  me.look, me.ends = promise(me.ttl, retry), now + me.ttl
  me.p, me.tried, me.nonce, me.proc = tonumber(ARGV[12]), now_us, ARGV[10], ARGV[11]
  me.joined = in_line and me.joined or now_us
  local entry = entry_of(me)
  if place == 'b' then
    redis.call('HSET', KEYS[4], me.id, entry)
    redis.call('ZADD', KEYS[6], me.ends, me.id)
    keep_details(me.ttl)
    if redis.call('PTTL', KEYS[6]) < me.ttl then
      redis.call('PEXPIRE', KEYS[6], me.ttl)
    end
  else
    if in_line then
      redis.call('LSET', KEYS[3], in_line, entry)
    elseif me.beside then
      redis.call('LPUSH', KEYS[3], entry)
    else
      redis.call('RPUSH', KEYS[3], entry)
    end
    if redis.call('PTTL', KEYS[3]) < me.ttl then
      redis.call('PEXPIRE', KEYS[3], me.ttl)
    end
  end
  if hold.flag == '-' then
    redis.call('SETRANGE', KEYS[1], 5, '+')
  end
end
--#include serve.lua
