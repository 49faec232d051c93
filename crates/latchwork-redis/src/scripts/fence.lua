-- Lets the rest of the script run unless a larger token was seen. KEYS[1] keeps the largest,
-- ARGV[1] is the caller's. Both are text: numbers of Lua are exact up to 2^53 only, and tokens
-- pass that. Digits without leading zeros are compared by their count first, then as text.
do
  local token, newest = ARGV[1], redis.call('GET', KEYS[1])
  if not string.match(token or '', '^[1-9]%d*$') then
    return redis.error_reply('ERR the fence: ARGV[1] is not a token')
  elseif newest and not string.match(newest, '^[1-9]%d*$') then
    return redis.error_reply('ERR the fence: KEYS[1] holds something else than a token')
  elseif newest and (#token < #newest or (#token == #newest and token < newest)) then
    return redis.error_reply('FENCED token ' .. token .. ' was superseded by ' .. newest)
  elseif token ~= newest then
    redis.call('SET', KEYS[1], token)
  end
end
