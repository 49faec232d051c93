-- Puts a claim at the end of the line, behind one that holds the key alone. KEYS: 1 the lock, 2 the
-- line. ARGV: 1 what the value of such a holder starts with, 2 id, 3 ttl (ms), 4 the entry from the mode
-- up to the limit, 5 the holder.
--
-- The answer is that of a try to a claim that is blocked, or nil if the whole script must be asked.
-- The holder may be this claim, which was not told: the whole script answers that too.
--
-- Measured: the whole script needs 4.3 times as many instructions of the server. As a short way inside
-- it, with 25 keys and arguments, this needed 1.45 times as many (callgrind).
local redis, sub = redis, string.sub
--#guard guard_ask.lua
local value = redis.call('GET', KEYS[1])
local flag = value and sub(value, 6, 6)
if not value or sub(value, 1, 5) ~= ARGV[1] or (flag ~= '+' and flag ~= '-')
  or sub(value, 8, 39) == ARGV[2]
  or (tonumber(string.match(value, '^:(%d+):', 40)) or 1e300) > 9007199254740991 then
  return false
end
local time = redis.call('TIME')
-- A clock of before 2001 does not fill the fields of an entry: the whole script fills them up.
if #time[1] ~= 10 then
  return false
end
local left, ahead, ttl = redis.call('PTTL', KEYS[1]), redis.call('LLEN', KEYS[2]), tonumber(ARGV[3])
local retry = left >= 0 and left + 1 + math.min(ahead * 10, @SPREAD@) or -1
local rest = math.min(math.floor(ttl / 3), @REST@)
rest = retry >= 0 and math.min(rest, retry) or rest
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('RPUSH', KEYS[2], string.format('%s%.0f%.0f%s%06d%s%s%06d%s', ARGV[2], now + rest, now + ttl,
  time[1], time[2], ARGV[4], time[1], time[2], ARGV[5]))
-- Half a second more than needed, so that not each newcomer has to lengthen it: that would double what
-- replicas and the append-only file get of it, and takes 1.09 times as many instructions.
if redis.call('PTTL', KEYS[2]) < ttl then
  redis.call('PEXPIRE', KEYS[2], ttl + 500)
end
if flag == '-' then
  redis.call('SETRANGE', KEYS[1], 5, '+')
end
return { 0, 'h', retry, ahead, time[1], time[2], sub(value, 58) }
