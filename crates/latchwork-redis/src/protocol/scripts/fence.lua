-- Lets the rest of the script run unless a larger token was seen. KEYS[1] keeps the largest,
-- ARGV[1] is the caller's. Both are text: numbers of Lua are exact up to 2^53 only, and tokens
-- pass that. Digits without leading zeros are compared by their count first, then as text. A token is
-- below 2^63: what is larger would shut out all others for ever.
do
  local function is_token(text)
    return type(text) == 'string' and string.match(text, '^[1-9]%d*$')
      and (#text < 19 or (#text == 19 and text <= '9223372036854775807'))
  end
  local token, newest = ARGV[1], redis.call('GET', KEYS[1])
  if not is_token(token) then
    return redis.error_reply('ERR the fence: ARGV[1] is not a token: give that of a guard, as text')
  elseif newest and not is_token(newest) then
    return redis.error_reply('ERR the fence: ' .. KEYS[1] .. ' holds something else than a token: set it to '
      .. 'the largest token that has written, or delete it while no holder works')
  elseif newest and (#token < #newest or (#token == #newest and token < newest)) then
    return redis.error_reply('FENCED token ' .. token .. ' was superseded by ' .. newest)
  elseif token ~= newest then
    redis.call('SET', KEYS[1], token)
  end
end
