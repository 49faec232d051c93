-- Who is next, and how it is told. Included by common.lua.

-- How long who was called has to come before the next who only left a mark.
local CALLED = 100
-- How many waiters one call serves or passes over at most: the server does nothing else meanwhile.
-- Who called calls again for the others.
local MOST = 128

-- Whether a process hears what is published to it. PUBLISH counts those who listen by a pattern
-- too, who may be anybody; without the right to ask, its count must do.
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

-- Publishes to a process; false if nobody can have heard it.
local function publish(proc, message)
  if not hears(proc) then
    return false
  end
  local count = redis.pcall('PUBLISH', ARGV[13] .. proc .. ARGV[14], message)
  mute = type(count) ~= 'number' -- not with the caller's rights
  heard[proc] = not mute and count > 0
  return heard[proc]
end

local function granted_message(w, token)
  local since = text(math.max(0, now_us - w.tried))
  return table.concat({ 'g', w.id, token, text(w.p), w.nonce, since, KEYS[1] }, ' ')
end

-- Gives the key to a waiter and tells it so. Its lease is on probation: short, until it renews.
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

-- Tells the waiter at this place in line to look by then, unless it promised to look about as
-- early.
local function warn(place, entry, by)
  local w = waiter(entry)
  if w and w.look > by + LATE and publish(w.proc, 'l ' .. w.id .. ' ' .. text(by - now)) then
    w.look = by
    redis.call('LSET', KEYS[3], place, entry_of(w))
  end
end

-- Wakes those who only left a mark, the oldest first: the key can be tried. Of those who want it
-- alone one is enough: whoever releases the key wakes the next. If that one does not come, those
-- behind it look by themselves, at the latest when they are told to here.
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
        forget_mark(id) -- nobody hears it: when it is back it looks, and leaves another one
      end
    end
  end
end

-- Serves the line, first come first: everybody who fits is granted the key, up to the first who
-- does not fit or who must come by itself. `me` is the caller's claim, at its place in line or,
-- without one, at the end; those before the place `from` were passed over by a call right before.
-- Returns its token, or whose turn it is, or from where the caller has to call again; and whether
-- somebody was granted the key by a message, so that the next in line have to be warned (warn.lua).
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
        skipped = skipped + 1 -- it did not come when it could have
      elseif w.proc == '-' then
        if w.look > now + w.p then
          w.look = now + w.p
          redis.call('LSET', KEYS[3], skipped, entry_of(w))
        end
        turn = { look = w.look, holder = w.holder }
        -- Nobody can tell it: who stands behind it comes when it has not.
        local behind = redis.call('LINDEX', KEYS[3], skipped + 1)
        if behind and not (me and sub(behind, 1, 32) == me.id) then
          warn(skipped + 1, behind, w.look + LATE + 1)
        end
        break
      elseif push(w, entry) then
        pushed = 1
        left = math.max(0, left - 2) -- it costs more than to pass one over
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
    more = more or 0 -- some whose ttl is over still count
  elseif not turn and not more and (hold.kind == nil or is_shared(hold.kind)) then
    -- Whoever is in line still cannot be told.
    call_marks()
  end
  return mine, turn, more, pushed
end
