-- What the server runs, with indents that it does not get.

-- plain take
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return { 1, '' }
end
local value = redis.call('GET', KEYS[1])
local is_own = string.sub(value, 1, 5) == 'lw:x:' and string.sub(value, 8, 39) == ARGV[3]
local token = string.match(value, '^:(%d+):', 40)
if is_own and token and #token == 16 and tonumber(token) <= 9007199254740991 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return { 1, string.sub(value, 41, 56) }
end
return { 0, value, redis.call('PTTL', KEYS[1]) }

-- plain token
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
local time = redis.call('TIME')
KEYS[2] = KEYS[1]
local token = draw_token(0, time[1] * 1000000 + time[2])
return token or { 4, KEYS[1], redis.call('GET', KEYS[1]) or '' }

-- plain confirm
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 8, 39) ~= ARGV[1] then
  return ''
end
if string.sub(value, 41, 56) ~= '0000000000000000' then
  return string.sub(value, 41, 56)
end
redis.call('SETRANGE', KEYS[1], 40, ARGV[2])
return ARGV[2]

-- plain renew
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, 5) ~= 'lw:x:' or string.sub(value, 8, 39) ~= ARGV[1] then
  return ''
end
local token = string.match(value, '^:(%d+):', 40)
if not token or #token > 16 or tonumber(token) > 9007199254740991 then
  return ''
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token

-- plain release
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, 5) ~= 'lw:x:' or string.sub(value, 8, 39) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])

-- plain inspect
local kind = redis.call('TYPE', KEYS[1])['ok']
return { kind, kind == 'string' and redis.call('GET', KEYS[1]) or '', redis.call('PTTL', KEYS[1]) }
