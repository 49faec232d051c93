-- What the server runs, with indents that it does not get.

-- try
local guard = { keys = #KEYS, max = ARGV[#ARGV - 1], length = ARGV[#ARGV], closed = 0 }
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], KEYS[1]
do
  local run, database = ARGV[#ARGV - 3], ARGV[#ARGV - 2]
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true)
  if run == '' or not at then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. string.sub(info, at + 14, at + 53) .. '@' .. database
  guard.database = database
  local marker = redis.call('GET', KEYS[1])
  guard.is_open = marker == guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length
  if not guard.is_open then
    guard.time = redis.call('TIME')
    guard.now = guard.time[1] * 1000 + math.floor(guard.time[2] / 1000)
    local born, max, length
    guard.marked, born, max, length = string.match(marker or '', '^(%S+) (%d+) (%d+) (%d+)$')
    guard.born = tonumber(born)
    if max and (max ~= guard.max or length ~= guard.length) then
      guard.other = { 3, max, length }
    end
    guard.closed = tonumber(guard.length)
    if guard.marked == guard.identity and guard.born <= guard.now then
      guard.closed = math.max(1, guard.born + tonumber(guard.length) - guard.now)
    end
  end
end
if not guard.is_open then
  if guard.other then
    return guard.other
  end
  local function write(born)
    local keyspace = redis.pcall('INFO', 'keyspace')
    if type(keyspace) == 'string' then
      local ending = '@' .. guard.database
      for other in string.gmatch(keyspace, 'db(%d+):keys=') do
        if other ~= guard.database and not redis.pcall('SELECT', other).err then
          local marker = redis.pcall('GET', KEYS[1])
          local identity = type(marker) == 'string' and string.match(marker, '^%S+') or ''
          if string.sub(identity, -#ending) == ending then
            redis.call('DEL', KEYS[1])
          end
          redis.call('SELECT', guard.database)
        end
      end
    end
    local lengths = ' ' .. guard.max .. ' ' .. guard.length
    redis.call('SET', KEYS[1], guard.identity .. ' ' .. string.format('%.0f', born) .. lengths)
  end
  if guard.marked ~= guard.identity or guard.now < guard.born then
    write(guard.now)
  elseif guard.now >= guard.born + guard.length then
    write(0)
    guard.closed = 0
  end
end
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], nil
if guard.closed > 0 and #KEYS == 3 then
  local held = redis.call('GET', KEYS[1])
  if not held or string.sub(held, 1, 5) ~= string.sub(ARGV[1], 1, 5)
  or string.sub(held, 8, 39) ~= string.sub(ARGV[1], 8, 39) then
    return { 0, 'g', guard.closed, -1, guard.time[1], guard.time[2], '' }
  end
end
if #KEYS == 3 then
  local redis, floor = redis, tonumber(ARGV[4])
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^[1-9]%d*$')) or 0
  local token = math.max(last + 1, floor, floor < 1e15 and now_us or 0)
  if token > 9007199254740991 then
    return false
  end
  local low = token % 1e8
  local digits = token < 1e8 and string.format('%.0f', token)
  or string.format('%d%08d', (token - low) / 1e8, low)
  local held = redis.call('SET', KEYS[1], ARGV[1] .. digits .. ARGV[3], 'NX', 'GET', 'PX', ARGV[2])
  if held then
    return held
  end
  if redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('DEL', KEYS[1])
    return false
  end
  if last > 0 and token <= now_us then
    redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
  else
    local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
    redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
  end
  return token
end
local function draw_token(floor, now_us)
  local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^[1-9]%d*$')) or 0
  local token = math.max(last + 1, floor, floor < 1e15 and now_us or 0)
  if token > 9007199254740991 then
    return false
  end
  local low = token % 1e8
  local digits = token < 1e8 and string.format('%.0f', token)
  or string.format('%d%08d', (token - low) / 1e8, low)
  if last > 0 and token <= now_us then
    redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
  else
    local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
    redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
  end
  return token, digits
end
local function raised(held, floor, now_us)
  if tonumber(floor) <= tonumber(held) then
    return held
  end
  local last, token = tonumber(redis.call('GET', KEYS[2]) or 0) or 0, tonumber(floor)
  if last < token then
    if last > 0 and token <= now_us then
      redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
    else
      local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
      redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
    end
  end
  return floor
end
local redis, sub = redis, string.sub
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local LATE = 500
local REST = 10000
local SPREAD = 490
local LAST = 9999999999999
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
local function found(id, from, to)
  local entries = redis.call('LRANGE', KEYS[3], from, to)
  for i = #entries, 1, -1 do
    if sub(entries[i], 1, 32) == id then
      return from + i - 1, entries[i]
    end
  end
  return nil, #entries
end
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
local function keep_details(length)
  if redis.call('PTTL', KEYS[4]) < length then
    redis.call('PEXPIRE', KEYS[4], length)
  end
end
local function is_shared(mode)
  return mode == 'r' or mode == 'p'
end
do
  local value = redis.call('GET', KEYS[1])
  hold.value = value
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
    local gone = redis.call('ZRANGE', KEYS[5], 0, 999)
    for _, id in ipairs(gone) do
      redis.call('HDEL', KEYS[4], id)
    end
    redis.call('DEL', KEYS[5])
  end
end
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
local spent = false
local function grant(c, length, in_line, floor)
  local _, token = draw_token(floor or 0, now_us)
  if not token then
    spent = true
    return nil
  end
  forget_mark(c.id)
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
    return 'h', -1, ''
  end
  return 'q', 100, ''
end
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
local CALLED = 100
local MOST = 128
local heard, mute = {}, false
local function hears(proc)
  if proc == '-' or mute then
    return false
  end
  if heard[proc] == nil then
    local count = ARGV[16] ~= '' and redis.pcall('PUBSUB', ARGV[16], ARGV[13] .. proc .. ARGV[14])
    heard[proc] = not (type(count) == 'table' and count[2] == 0)
  end
  return heard[proc]
end
local function publish(proc, message)
  if not hears(proc) then
    return false
  end
  local count = redis.pcall('PUBLISH', ARGV[13] .. proc .. ARGV[14], message)
  mute = type(count) ~= 'number'
  heard[proc] = not mute and count > 0
  return heard[proc]
end
local function granted_message(w, token)
  local since = text(math.max(0, now_us - w.tried))
  return table.concat({ 'g', w.id, token, text(w.p), w.nonce, since, KEYS[1] }, ' ')
end
local function push(w, entry)
  if not hears(w.proc) then
    return false
  end
  local before = { kind = hold.kind, closed = hold.closed, of = hold.of, taken = hold.taken }
  local token = grant(w, w.p, true)
  if token and publish(w.proc, granted_message(w, token)) then
    leave_line(entry)
    return true
  end
  if is_shared(w.mode) or w.beside then
    redis.call('ZREM', KEYS[5], w.id)
    redis.call('HDEL', KEYS[4], w.id)
  end
  hold = before
  dirty = true
  return false
end
local function warn(place, entry, by)
  local w = waiter(entry)
  if w and w.look > by + LATE and publish(w.proc, 'l ' .. w.id .. ' ' .. text(by - now)) then
    w.look = by
    redis.call('LSET', KEYS[3], place, entry_of(w))
  end
end
local function call_marks()
  local behind
  for _, id in ipairs(redis.call('ZRANGE', KEYS[6], 0, MOST - 1)) do
    local detail = redis.call('HGET', KEYS[4], id)
    local w = detail and waiter(detail)
    if not w or w.ends <= now then
      forget_mark(id)
    elseif behind then
      behind = behind + 1
      local by = now + CALLED * behind
      if w.look > by + LATE and publish(w.proc, 'l ' .. id .. ' ' .. text(by - now)) then
        w.look = by
        redis.call('HSET', KEYS[4], id, entry_of(w))
      end
      if behind == 3 then
        return
      end
    elseif fits(w.mode, w.take, w.of) then
      if publish(w.proc, 'l ' .. id .. ' 0') then
        forget_mark(id)
        behind = not is_shared(w.mode) and 0 or nil
      elseif w.proc ~= '-' and not mute then
        forget_mark(id)
      end
    end
  end
end
local function serve(me, in_line, floor, from)
  local mine, turn, more
  local pushed = 0
  local skipped = math.min(tonumber(from) or 0, in_line or math.huge)
  local left = MOST
  while not turn and not more do
    local entries = redis.call('LRANGE', KEYS[3], skipped, skipped + 31)
    for _, entry in ipairs(entries) do
      local w = waiter(entry)
      if left == 0 then
        more = skipped
        break
      end
      left = left - 1
      if not w or w.ends <= now or (w.beside and hold.id ~= w.beside and not is_member(w.beside)) then
        leave_line(entry)
      elseif not fits(w.mode, w.take, w.of, w.beside) then
        turn = { held = true }
        break
      elseif me and w.id == me.id then
        mine = grant(me, me.ttl, true, floor)
        leave_line(entry)
      elseif w.look + LATE < now then
        skipped = skipped + 1
      elseif w.proc == '-' then
        if w.look > now + w.p then
          w.look = now + w.p
          redis.call('LSET', KEYS[3], skipped, entry_of(w))
        end
        turn = { look = w.look, holder = w.holder }
        local behind = redis.call('LINDEX', KEYS[3], skipped + 1)
        if behind and not (me and sub(behind, 1, 32) == me.id) then
          warn(skipped + 1, behind, w.look + LATE + 1)
        end
        break
      elseif push(w, entry) then
        pushed = 1
        left = math.max(0, left - 2)
      else
        skipped = skipped + 1
      end
    end
    if #entries < 32 then
      break
    end
  end
  if me and not mine and not in_line and not turn and not more and fits(me.mode, me.take, me.of) then
    mine = grant(me, me.ttl, false, floor)
  end
  if hold.more then
    more = more or 0
  elseif not turn and not more and (hold.kind == nil or is_shared(hold.kind)) then
    call_marks()
  end
  return mine, turn, more, pushed
end
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
if guard.closed > 0 then
  local before = -1
  if place == 'f' then
    before = in_line or redis.call('LLEN', KEYS[3])
  elseif entry then
    leave_line(entry)
  end
  if place ~= 'n' then
    keep_place(me, place, in_line, guard.closed)
  end
  finish()
  local joined = place == 'f' and me.joined or -1
  return { 0, 'g', guard.closed, before, time[1], time[2], '', -1, joined }
end
local granted, turn, more, pushed
if me.beside then
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

-- take
local guard = { keys = #KEYS, max = ARGV[#ARGV - 1], length = ARGV[#ARGV], closed = 0 }
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], KEYS[1]
do
  local run, database = ARGV[#ARGV - 3], ARGV[#ARGV - 2]
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true)
  if run == '' or not at then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. string.sub(info, at + 14, at + 53) .. '@' .. database
  guard.database = database
  local marker = redis.call('GET', KEYS[1])
  guard.is_open = marker == guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length
  if not guard.is_open then
    guard.time = redis.call('TIME')
    guard.now = guard.time[1] * 1000 + math.floor(guard.time[2] / 1000)
    local born, max, length
    guard.marked, born, max, length = string.match(marker or '', '^(%S+) (%d+) (%d+) (%d+)$')
    guard.born = tonumber(born)
    if max and (max ~= guard.max or length ~= guard.length) then
      guard.other = { 3, max, length }
    end
    guard.closed = tonumber(guard.length)
    if guard.marked == guard.identity and guard.born <= guard.now then
      guard.closed = math.max(1, guard.born + tonumber(guard.length) - guard.now)
    end
  end
end
if not guard.is_open then
  local answer = {}
  for i = 1, guard.keys / 2 - 1 do
    answer[i] = false
  end
  return answer
end
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], nil
local redis, KEYS = redis, KEYS
local n = (#KEYS - 1) / 2
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local floor = tonumber(ARGV[4])
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^[1-9]%d*$')) or 0
local token = math.max(last + 1, floor, floor < 1e15 and now_us or 0)
if token > 9007199254740991 then
  return false
end
local low = token % 1e8
local digits = token < 1e8 and string.format('%.0f', token)
or string.format('%d%08d', (token - low) / 1e8, low)
local tokens = { token }
for i = 2, n do
  floor = tonumber(ARGV[i * 4])
  token = math.max(token + 1, floor, floor < 1e15 and now_us or 0)
  tokens[i] = token
end
if token > 9007199254740991 then
  return false
end
if last > 0 and token <= now_us then
  redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
else
  local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
  redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
end
local answer = {}
local first = 1
while first <= n do
  local left = n - first + 1
  local width = left > 12 and 16 or left > 4 and 8 or 4
  local last = math.min(first + width - 1, n)
  if first > 1 then
    KEYS[1], KEYS[3] = KEYS[first * 2], KEYS[first * 2 + 1]
  end
  for place = 2, width do
    local i = first + place - 1
    if i > n then
      KEYS[place * 2 + 1] = KEYS[3]
    elseif first > 1 then
      KEYS[place * 2], KEYS[place * 2 + 1] = KEYS[i * 2], KEYS[i * 2 + 1]
    end
  end
  local lines
  if width == 16 then
    lines = redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[7], KEYS[9], KEYS[11], KEYS[13], KEYS[15], KEYS[17],
    KEYS[19], KEYS[21], KEYS[23], KEYS[25], KEYS[27], KEYS[29], KEYS[31], KEYS[33])
  elseif width == 8 then
    lines = redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[7], KEYS[9], KEYS[11], KEYS[13], KEYS[15], KEYS[17])
  else
    lines = redis.call('EXISTS', KEYS[3], KEYS[5], KEYS[7], KEYS[9])
  end
  for i = first, last do
    if i > first then
      KEYS[1] = KEYS[(i - first + 1) * 2]
      if lines > 0 then
        KEYS[3] = KEYS[(i - first + 1) * 2 + 1]
      end
    end
    if lines == 0 or redis.call('EXISTS', KEYS[3]) == 0 then
      local value = ARGV[i * 4 - 3] .. string.format('%.0f', tokens[i]) .. ARGV[i * 4 - 1]
      local held = redis.pcall('SET', KEYS[1], value, 'NX', 'GET', 'PX', ARGV[i * 4 - 2])
      if type(held) == 'table' then
        answer[i] = false
      else
        answer[i] = held or tokens[i]
      end
    else
      answer[i] = false
    end
  end
  first = last + 1
end
return answer

-- release
local guard = { keys = #KEYS, max = ARGV[#ARGV - 1], length = ARGV[#ARGV], closed = 0 }
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], KEYS[1]
do
  local run, database = ARGV[#ARGV - 3], ARGV[#ARGV - 2]
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true)
  if run == '' or not at then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. string.sub(info, at + 14, at + 53) .. '@' .. database
  guard.database = database
  local marker = redis.call('GET', KEYS[1])
  guard.is_open = marker == guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length
  if not guard.is_open then
    guard.time = redis.call('TIME')
    guard.now = guard.time[1] * 1000 + math.floor(guard.time[2] / 1000)
    local born, max, length
    guard.marked, born, max, length = string.match(marker or '', '^(%S+) (%d+) (%d+) (%d+)$')
    guard.born = tonumber(born)
    if max and (max ~= guard.max or length ~= guard.length) then
      guard.other = { 3, max, length }
    end
    guard.closed = tonumber(guard.length)
    if guard.marked == guard.identity and guard.born <= guard.now then
      guard.closed = math.max(1, guard.born + tonumber(guard.length) - guard.now)
    end
  end
end
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], nil
if #KEYS == 1 then
  local value = redis.call('GET', KEYS[1])
  if value and string.sub(value, 1, 39) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
  end
  return 2
end
local function draw_token(floor, now_us)
  local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^[1-9]%d*$')) or 0
  local token = math.max(last + 1, floor, floor < 1e15 and now_us or 0)
  if token > 9007199254740991 then
    return false
  end
  local low = token % 1e8
  local digits = token < 1e8 and string.format('%.0f', token)
  or string.format('%d%08d', (token - low) / 1e8, low)
  if last > 0 and token <= now_us then
    redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
  else
    local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
    redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
  end
  return token, digits
end
local function raised(held, floor, now_us)
  if tonumber(floor) <= tonumber(held) then
    return held
  end
  local last, token = tonumber(redis.call('GET', KEYS[2]) or 0) or 0, tonumber(floor)
  if last < token then
    if last > 0 and token <= now_us then
      redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
    else
      local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
      redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
    end
  end
  return floor
end
local redis, sub = redis, string.sub
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local LATE = 500
local REST = 10000
local SPREAD = 490
local LAST = 9999999999999
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
local function found(id, from, to)
  local entries = redis.call('LRANGE', KEYS[3], from, to)
  for i = #entries, 1, -1 do
    if sub(entries[i], 1, 32) == id then
      return from + i - 1, entries[i]
    end
  end
  return nil, #entries
end
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
local function keep_details(length)
  if redis.call('PTTL', KEYS[4]) < length then
    redis.call('PEXPIRE', KEYS[4], length)
  end
end
local function is_shared(mode)
  return mode == 'r' or mode == 'p'
end
do
  local value = redis.call('GET', KEYS[1])
  hold.value = value
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
    local gone = redis.call('ZRANGE', KEYS[5], 0, 999)
    for _, id in ipairs(gone) do
      redis.call('HDEL', KEYS[4], id)
    end
    redis.call('DEL', KEYS[5])
  end
end
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
local spent = false
local function grant(c, length, in_line, floor)
  local _, token = draw_token(floor or 0, now_us)
  if not token then
    spent = true
    return nil
  end
  forget_mark(c.id)
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
    return 'h', -1, ''
  end
  return 'q', 100, ''
end
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
local CALLED = 100
local MOST = 128
local heard, mute = {}, false
local function hears(proc)
  if proc == '-' or mute then
    return false
  end
  if heard[proc] == nil then
    local count = ARGV[16] ~= '' and redis.pcall('PUBSUB', ARGV[16], ARGV[13] .. proc .. ARGV[14])
    heard[proc] = not (type(count) == 'table' and count[2] == 0)
  end
  return heard[proc]
end
local function publish(proc, message)
  if not hears(proc) then
    return false
  end
  local count = redis.pcall('PUBLISH', ARGV[13] .. proc .. ARGV[14], message)
  mute = type(count) ~= 'number'
  heard[proc] = not mute and count > 0
  return heard[proc]
end
local function granted_message(w, token)
  local since = text(math.max(0, now_us - w.tried))
  return table.concat({ 'g', w.id, token, text(w.p), w.nonce, since, KEYS[1] }, ' ')
end
local function push(w, entry)
  if not hears(w.proc) then
    return false
  end
  local before = { kind = hold.kind, closed = hold.closed, of = hold.of, taken = hold.taken }
  local token = grant(w, w.p, true)
  if token and publish(w.proc, granted_message(w, token)) then
    leave_line(entry)
    return true
  end
  if is_shared(w.mode) or w.beside then
    redis.call('ZREM', KEYS[5], w.id)
    redis.call('HDEL', KEYS[4], w.id)
  end
  hold = before
  dirty = true
  return false
end
local function warn(place, entry, by)
  local w = waiter(entry)
  if w and w.look > by + LATE and publish(w.proc, 'l ' .. w.id .. ' ' .. text(by - now)) then
    w.look = by
    redis.call('LSET', KEYS[3], place, entry_of(w))
  end
end
local function call_marks()
  local behind
  for _, id in ipairs(redis.call('ZRANGE', KEYS[6], 0, MOST - 1)) do
    local detail = redis.call('HGET', KEYS[4], id)
    local w = detail and waiter(detail)
    if not w or w.ends <= now then
      forget_mark(id)
    elseif behind then
      behind = behind + 1
      local by = now + CALLED * behind
      if w.look > by + LATE and publish(w.proc, 'l ' .. id .. ' ' .. text(by - now)) then
        w.look = by
        redis.call('HSET', KEYS[4], id, entry_of(w))
      end
      if behind == 3 then
        return
      end
    elseif fits(w.mode, w.take, w.of) then
      if publish(w.proc, 'l ' .. id .. ' 0') then
        forget_mark(id)
        behind = not is_shared(w.mode) and 0 or nil
      elseif w.proc ~= '-' and not mute then
        forget_mark(id)
      end
    end
  end
end
local function serve(me, in_line, floor, from)
  local mine, turn, more
  local pushed = 0
  local skipped = math.min(tonumber(from) or 0, in_line or math.huge)
  local left = MOST
  while not turn and not more do
    local entries = redis.call('LRANGE', KEYS[3], skipped, skipped + 31)
    for _, entry in ipairs(entries) do
      local w = waiter(entry)
      if left == 0 then
        more = skipped
        break
      end
      left = left - 1
      if not w or w.ends <= now or (w.beside and hold.id ~= w.beside and not is_member(w.beside)) then
        leave_line(entry)
      elseif not fits(w.mode, w.take, w.of, w.beside) then
        turn = { held = true }
        break
      elseif me and w.id == me.id then
        mine = grant(me, me.ttl, true, floor)
        leave_line(entry)
      elseif w.look + LATE < now then
        skipped = skipped + 1
      elseif w.proc == '-' then
        if w.look > now + w.p then
          w.look = now + w.p
          redis.call('LSET', KEYS[3], skipped, entry_of(w))
        end
        turn = { look = w.look, holder = w.holder }
        local behind = redis.call('LINDEX', KEYS[3], skipped + 1)
        if behind and not (me and sub(behind, 1, 32) == me.id) then
          warn(skipped + 1, behind, w.look + LATE + 1)
        end
        break
      elseif push(w, entry) then
        pushed = 1
        left = math.max(0, left - 2)
      else
        skipped = skipped + 1
      end
    end
    if #entries < 32 then
      break
    end
  end
  if me and not mine and not in_line and not turn and not more and fits(me.mode, me.take, me.of) then
    mine = grant(me, me.ttl, false, floor)
  end
  if hold.more then
    more = more or 0
  elseif not turn and not more and (hold.kind == nil or is_shared(hold.kind)) then
    call_marks()
  end
  return mine, turn, more, pushed
end
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
redis.call('DEL', KEYS[1])
hold = { closed = 0 }
if linger > 0 then
  hold = { kind = 'c', closed = now + linger, holder = ARGV[4] }
end
dirty = linger > 0
elseif (is_shared(hold.kind) or hold.beside) and redis.call('ZREM', KEYS[5], id) == 1 then
local take = string.match(redis.call('HGET', KEYS[4], id) or '', '^m %a (%d+)')
hold.taken = (hold.taken or 0) - (tonumber(take) or 0)
if not hold.beside and linger > 0 and now + linger > hold.closed then
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
if not guard.is_open then
  finish()
  return { released, time[1], time[2], 0, -1, before, taken }
end
local _, _, more, pushed = serve(nil, nil, nil, ARGV[17])
finish()
return { released, time[1], time[2], pushed, more or -1, before, taken }

-- enqueue
local guard = { keys = #KEYS, max = ARGV[#ARGV - 1], length = ARGV[#ARGV], closed = 0 }
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], KEYS[1]
do
  local run, database = ARGV[#ARGV - 3], ARGV[#ARGV - 2]
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true)
  if run == '' or not at then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. string.sub(info, at + 14, at + 53) .. '@' .. database
  guard.database = database
  local marker = redis.call('GET', KEYS[1])
  guard.is_open = marker == guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length
  if not guard.is_open then
    guard.time = redis.call('TIME')
    guard.now = guard.time[1] * 1000 + math.floor(guard.time[2] / 1000)
    local born, max, length
    guard.marked, born, max, length = string.match(marker or '', '^(%S+) (%d+) (%d+) (%d+)$')
    guard.born = tonumber(born)
    if max and (max ~= guard.max or length ~= guard.length) then
      guard.other = { 3, max, length }
    end
    guard.closed = tonumber(guard.length)
    if guard.marked == guard.identity and guard.born <= guard.now then
      guard.closed = math.max(1, guard.born + tonumber(guard.length) - guard.now)
    end
  end
end
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], nil
local redis, sub = redis, string.sub
if not guard.is_open then
  return false
end
local value = redis.call('GET', KEYS[1])
local flag = value and sub(value, 6, 6)
if not value or sub(value, 1, 5) ~= ARGV[1] or (flag ~= '+' and flag ~= '-')
or sub(value, 8, 39) == ARGV[2]
or (tonumber(string.match(value, '^:(%d+):', 40)) or 1e300) > 9007199254740991 then
  return false
end
local time = redis.call('TIME')
if #time[1] ~= 10 then
  return false
end
local left, ahead, ttl = redis.call('PTTL', KEYS[1]), redis.call('LLEN', KEYS[2]), tonumber(ARGV[3])
local retry = left >= 0 and left + 1 + math.min(ahead * 10, 490) or -1
local rest = math.min(math.floor(ttl / 3), 10000)
rest = retry >= 0 and math.min(rest, retry) or rest
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('RPUSH', KEYS[2], string.format('%s%.0f%.0f%s%06d%s%s%06d%s', ARGV[2], now + rest, now + ttl,
time[1], time[2], ARGV[4], time[1], time[2], ARGV[5]))
if redis.call('PTTL', KEYS[2]) < ttl then
  redis.call('PEXPIRE', KEYS[2], ttl + 500)
end
if flag == '-' then
  redis.call('SETRANGE', KEYS[1], 5, '+')
end
return { 0, 'h', retry, ahead, time[1], time[2], sub(value, 58) }

-- hand_on
local guard = { keys = #KEYS, max = ARGV[#ARGV - 1], length = ARGV[#ARGV], closed = 0 }
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], KEYS[1]
do
  local run, database = ARGV[#ARGV - 3], ARGV[#ARGV - 2]
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true)
  if run == '' or not at then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. string.sub(info, at + 14, at + 53) .. '@' .. database
  guard.database = database
  local marker = redis.call('GET', KEYS[1])
  guard.is_open = marker == guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length
  if not guard.is_open then
    guard.time = redis.call('TIME')
    guard.now = guard.time[1] * 1000 + math.floor(guard.time[2] / 1000)
    local born, max, length
    guard.marked, born, max, length = string.match(marker or '', '^(%S+) (%d+) (%d+) (%d+)$')
    guard.born = tonumber(born)
    if max and (max ~= guard.max or length ~= guard.length) then
      guard.other = { 3, max, length }
    end
    guard.closed = tonumber(guard.length)
    if guard.marked == guard.identity and guard.born <= guard.now then
      guard.closed = math.max(1, guard.born + tonumber(guard.length) - guard.now)
    end
  end
end
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], nil
local redis, sub = redis, string.sub
if not guard.is_open then
  return false
end
local value = redis.call('GET', KEYS[1])
if value and sub(value, 4, 4) == 'w' and string.find(value, '\31beside=', 58, true) then
  return false
end
if not value or sub(value, 8, 39) ~= ARGV[1] then
  return false
end
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
or ends <= now or look + 500 < now or (mode == 'w' and sub(entry, 137, 137) == '1') then
  return false
end
local channel = ARGV[2] .. process .. ARGV[3]
local count = ARGV[4] ~= '' and redis.pcall('PUBSUB', ARGV[4], channel)
if type(count) == 'table' and count[2] == 0 then
  return false
end
local floor = 0
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^[1-9]%d*$')) or 0
local token = math.max(last + 1, floor, floor < 1e15 and now_us or 0)
if token > 9007199254740991 then
  return false
end
local low = token % 1e8
local digits = token < 1e8 and string.format('%.0f', token)
or string.format('%d%08d', (token - low) / 1e8, low)
redis.call('DEL', KEYS[1])
if last > 0 and token <= now_us then
  redis.call('INCRBY', KEYS[2], string.format(token - last < 2e9 and '%d' or '%.0f', token - last))
else
  local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
  redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', string.format('%.0f', length))
end
local id = sub(entry, 1, 32)
redis.call('SET', KEYS[1], 'lw:' .. mode .. ':+:' .. id .. ':' .. digits .. ':' .. sub(entry, 164), 'PX', p)
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
if behind and (tonumber(sub(behind, 33, 45)) or 0) > now + p + 500 then
  return 2
end
return 1

-- warn
local redis, sub = redis, string.sub
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local by = now + left
local warned = 0
for i, entry in ipairs(redis.call('LRANGE', KEYS[2], 0, 3)) do
  local look, p = tonumber(sub(entry, 33, 45)), tonumber(sub(entry, 76, 79))
  if not look or not p then
    break
  end
  if look > by + 500 and sub(entry, 80, 80) ~= '-' then
    local channel = ARGV[1] .. sub(entry, 80, 95) .. ARGV[2]
    local count = ARGV[3] ~= '' and redis.pcall('PUBSUB', ARGV[3], channel)
    local heard = type(count) == 'table' and count[2]
    if heard ~= 0 then
      local after = string.format('%.0f', by - now)
      heard = redis.pcall('PUBLISH', channel, 'l ' .. sub(entry, 1, 32) .. ' ' .. after)
    end
    if type(heard) == 'number' and heard > 0 then
      redis.call('LSET', KEYS[2], i - 1, string.format('%s%013.0f%s', sub(entry, 1, 32), by, sub(entry, 46)))
      warned = warned + 1
    end
  end
  by = by + p
end
return warned
