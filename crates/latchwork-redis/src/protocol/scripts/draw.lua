-- The rule of tokens, see docs/redis.md#tokens: all of it is here, and no script has another one. A token is above the last
-- one of its counter, and not below the clock. So a server that lacks the last tokens of another one
-- gives larger ones all the same. A floor by a clock of today, which several servers are given,
-- takes the place of each one's own clock.
--
-- Reads KEYS[2], the counter, `floor` and `now_us`; says what `last` and `token` are, and `digits`, the token as
-- text. It is put in the place of its include. Measured: with functions in its stead the short try and
-- its release take 1.15 times as long (CPU of the server, 64 in one packet).
--
-- A counter that is anything but the digits of a number counts as none: another client has spoilt it, and
-- tokens restart at the clock. If all tokens were given, the answer is false and nothing was written: above
-- 2^53 a number plus one is the same number.
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^[1-9]%d*$')) or 0
local token = math.max(last + 1, floor, floor < 1e15 and now_us or 0)
if token > 9007199254740991 then
  return false
end
-- In two parts: for `%d` a number has 31 bits on some servers. Measured: with `%.0f` the short try and its
-- release take 1.08 times as long. The difference is divided, for a quotient with a fraction is rounded.
local low = token % 1e8
local digits = token < 1e8 and string.format('%.0f', token)
  or string.format('%d%08d', (token - low) / 1e8, low)
