-- Starts the ttl of held claims anew. For each claim three keys (the lock, its details, its
-- members) and four arguments (id, mode, ttl in ms, floor); the last key is the token counter.
--
-- For each claim the answer has its token, or an empty text if it is not held;
-- the server's time comes last.
--#include token.lua
local call = redis.call
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local TOKEN = KEYS[#KEYS]

-- Asks for a part of one claim. What is of another type is nobody's, and must not stop the others.
local function look(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    if string.find(answer.err, 'WRONGTYPE', 1, true) then
      return nil
    end
    return call(...)
  end
  return answer
end

local function renew_alone(key, id, ttl, floor)
  local value = look('GET', key)
  if not value or string.sub(value, 8, 39) ~= id then
    return ''
  end
  -- Without its token it is no lock of anybody.
  local token = string.match(value, '^:(%d+):', 40)
  if not token or #token > 16 or tonumber(token) > 9007199254740991 then
    return ''
  end
  call('PEXPIRE', key, ttl)
  if floor ~= '0' then
    local new = raised(TOKEN, token, floor, now_us)
    if new ~= token then
      call('SETRANGE', key, 40, new)
      token = new
    end
  end
  return token
end

local function renew_member(key, details, members, id, mode, ttl, floor)
  -- Without the lock itself nobody holds anything, whatever its helpers say.
  local value = look('GET', key)
  if not value or string.sub(value, 1, 5) ~= 'lw:' .. mode .. ':' then
    return ''
  end
  local score = look('ZSCORE', members, id)
  if not score or tonumber(score) < now then
    return ''
  end
  local detail = look('HGET', details, id) or ''
  local head, token, tail = string.match(detail, '^(m %a %d+ )(%d+)( .*)$')
  if not token or #token > 16 or tonumber(token) > 9007199254740991 then
    return ''
  end
  -- First: a full server lets a script write after it has taken something away, if only nothing.
  call('ZREM', members, '')
  ttl = tonumber(ttl)
  for _, name in ipairs({ key, details, members }) do
    if call('PTTL', name) < ttl then
      call('PEXPIRE', name, ttl)
    end
  end
  call('ZADD', members, 'XX', now + ttl, id)
  local new = raised(TOKEN, token, floor, now_us)
  if new ~= token then
    call('HSET', details, id, head .. new .. tail)
  end
  return new
end

local answer = {}
for i = 1, (#KEYS - 1) / 3 do
  local key, details, members = KEYS[i * 3 - 2], KEYS[i * 3 - 1], KEYS[i * 3]
  local id, mode, ttl, floor = ARGV[i * 4 - 3], ARGV[i * 4 - 2], ARGV[i * 4 - 1], ARGV[i * 4]
  if mode == 'r' or mode == 'p' then
    answer[i] = renew_member(key, details, members, id, mode, ttl, floor)
  else
    answer[i] = renew_alone(key, id, ttl, floor)
  end
end
answer[#answer + 1] = time[1]
answer[#answer + 1] = time[2]
return answer
