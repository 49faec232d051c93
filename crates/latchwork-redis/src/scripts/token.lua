-- The rule of tokens, see docs/redis.md#tokens: all of it is here, and no script has another one. A token is above the last
-- one of its counter, and not below the clock. So a server that lacks the last tokens of another one
-- gives larger ones all the same. A floor by a clock of today, which several servers are given,
-- takes the place of each one's own clock.
local function token_above(last, floor, now_us)
  return math.max(last + 1, floor, floor < 1e15 and now_us or 0)
end

local function last_token(counter)
  return tonumber(redis.call('GET', counter) or 0) or 0
end

-- Moves a counter on. It may end when the clock has come to its value, for what begins at the clock
-- then is above all that it gave: a week after that, or a week after it was made.
local function keep_token(counter, last, token, now_us)
  if last > 0 and token <= now_us then
    redis.call('INCRBY', counter, string.format('%.0f', token - last))
  else
    local length = 604800000 + math.max(0, math.ceil((token - now_us) / 1000))
    redis.call('SET', counter, string.format('%.0f', token), 'PX', string.format('%.0f', length))
  end
end

local function draw_token(counter, floor, now_us)
  local last = last_token(counter)
  local token = token_above(last, floor, now_us)
  keep_token(counter, last, token, now_us)
  return token
end

-- The token of a held claim after a renewal: raised, with its counter, to the floor that a quorum has
-- agreed on.
local function raised(counter, token, floor, now_us)
  if tonumber(floor) <= tonumber(token) then
    return token
  end
  local last = last_token(counter)
  if last < tonumber(floor) then
    keep_token(counter, last, tonumber(floor), now_us)
  end
  return floor
end
