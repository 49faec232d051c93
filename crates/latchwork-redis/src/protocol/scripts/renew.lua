-- Starts the ttl of held claims anew. For each claim three keys (the lock, its details, its
-- members) and four arguments (id, mode, ttl in ms, floor); the second key of all is the token counter.
--
-- For each claim the answer has its token, or an empty text if it is not held;
-- the server's time comes last.
--#include token.lua
local redis, KEYS = redis, KEYS
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Whether what was asked for is of another type. Then it is nobody's, and must not stop the others. Any
-- other error is raised by asking again.
local function is_other(answer)
  return type(answer) == 'table' and string.find(answer.err, 'WRONGTYPE', 1, true)
end

local BESIDE = '\31beside='

-- Lengthens a member's hold.
local function prolong(id, ttl)
  -- First: a full server lets a script write after it has taken something away, if only nothing.
  redis.call('ZREM', KEYS[4], '')
  ttl = tonumber(ttl)
  if redis.call('PTTL', KEYS[1]) < ttl then
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  if redis.call('PTTL', KEYS[3]) < ttl then
    redis.call('PEXPIRE', KEYS[3], ttl)
  end
  if redis.call('PTTL', KEYS[4]) < ttl then
    redis.call('PEXPIRE', KEYS[4], ttl)
  end
  redis.call('ZADD', KEYS[4], 'XX', now + ttl, id)
end

local function renew_alone(id, ttl, floor)
  local value = redis.pcall('GET', KEYS[1])
  if is_other(value) then
    return ''
  elseif type(value) == 'table' then
    value = redis.call('GET', KEYS[1])
  end
  if not value or string.sub(value, 8, 39) ~= id then
    return ''
  end
  -- Without its token it is no lock of anybody.
  local token = string.match(value, '^:(%d+):', 40)
  if not token or #token > 16 or tonumber(token) > 9007199254740991 then
    return ''
  end
  -- A writer beside which another hold stays is a member (common.lua).
  local ends = string.sub(value, 4, 4) == 'w' and string.find(value, BESIDE, 58, true)
    and redis.call('ZSCORE', KEYS[4], id)
  if ends and tonumber(ends) < now then
    return ''
  elseif ends then
    prolong(id, ttl)
  else
    redis.call('PEXPIRE', KEYS[1], ttl)
  end
  if floor ~= '0' then
    local new = raised(token, floor, now_us)
    if new ~= token then
      redis.call('SETRANGE', KEYS[1], 40, new)
      token = new
    end
  end
  return token
end

local function renew_member(id, mode, ttl, floor)
  -- Without the lock itself nobody holds anything, whatever its helpers say.
  local value = redis.pcall('GET', KEYS[1])
  local score = redis.pcall('ZSCORE', KEYS[4], id)
  local detail = redis.pcall('HGET', KEYS[3], id)
  if is_other(value) or is_other(score) or is_other(detail) then
    return ''
  elseif type(value) == 'table' or type(score) == 'table' or type(detail) == 'table' then
    value = redis.call('GET', KEYS[1])
    score = redis.call('ZSCORE', KEYS[4], id)
    detail = redis.call('HGET', KEYS[3], id)
  end
  local is_beside = value and mode == 'r' and string.sub(value, 1, 5) == 'lw:w:'
    and string.find(value, BESIDE, 58, true)
  if not value or (string.sub(value, 1, 5) ~= 'lw:' .. mode .. ':' and not is_beside)
    or not score or tonumber(score) < now then
    return ''
  end
  local head, token, tail = string.match(detail or '', '^(m %a %d+ )(%d+)( .*)$')
  if not token or #token > 16 or tonumber(token) > 9007199254740991 then
    return ''
  end
  prolong(id, ttl)
  local new = raised(token, floor, now_us)
  if new ~= token then
    redis.call('HSET', KEYS[3], id, head .. new .. tail)
  end
  return new
end

local answer = {}
for i = 1, (#KEYS - 1) / 3 do
  if i > 1 then
    -- Each has the places of the first one: a key has to be written KEYS[n].
    KEYS[1], KEYS[3], KEYS[4] = KEYS[i * 3 - 1], KEYS[i * 3], KEYS[i * 3 + 1]
  end
  local id, mode, ttl, floor = ARGV[i * 4 - 3], ARGV[i * 4 - 2], ARGV[i * 4 - 1], ARGV[i * 4]
  if mode == 'r' or mode == 'p' then
    answer[i] = renew_member(id, mode, ttl, floor)
  else
    answer[i] = renew_alone(id, ttl, floor)
  end
end
answer[#answer + 1] = time[1]
answer[#answer + 1] = time[2]
return answer
