-- Tokens, for scripts that draw one in several places. The answer is false if all were given.
local function draw_token(floor, now_us)
--#include draw.lua
--#include keep.lua
  return token, digits
end

-- The token of a held claim after a renewal: raised, with its counter, to the floor that a quorum has
-- agreed on.
local function raised(held, floor, now_us)
  if tonumber(floor) <= tonumber(held) then
    return held
  end
  local last, token = tonumber(redis.call('GET', KEYS[2]) or 0) or 0, tonumber(floor)
  if last < token then
--#include keep.lua
  end
  return floor
end
