-- The restart guard, in front of a script: after the server may have lost data nothing is granted
-- until every lease that it may have forgotten has ended.
--
-- The last of KEYS is the marker; the last of ARGV are the run id of the process at the other end
-- of the connection (empty: ask), the number of the database, and max_ttl and the length of the
-- quarantine in ms. The marker:
--   <identity> <time (ms) at which the quarantine began, or 0 when it is over> <max_ttl> <length>
-- Without a marker the server may have lost it, and locks with it: that a namespace was never used
-- is not to be told from that it was deleted.
local guard = { keys = #KEYS, max = ARGV[#ARGV - 1], length = ARGV[#ARGV], closed = 0 }
-- Until guard_done.lua the marker has the place of the first key, for a key has to be written KEYS[n].
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], KEYS[1]
do
  local run, database = ARGV[#ARGV - 3], ARGV[#ARGV - 2]
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  -- A connection ends with the process, but not with the process's role. Two databases can change
  -- places with their markers.
  local info = redis.call('INFO', 'replication')
  local at = string.find(info, 'master_replid:', 1, true)
  if run == '' or not at then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. string.sub(info, at + 14, at + 53) .. '@' .. database
  guard.database = database
  local marker = redis.call('GET', KEYS[1])
  guard.is_open = marker == guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length
  if not guard.is_open then
    guard.time = redis.call('TIME')
    guard.now = guard.time[1] * 1000 + math.floor(guard.time[2] / 1000)
    local born, max, length
    guard.marked, born, max, length = string.match(marker or '', '^(%S+) (%d+) (%d+) (%d+)$')
    guard.born = tonumber(born)
    if max and (max ~= guard.max or length ~= guard.length) then
      guard.other = { 3, max, length }
    end
    -- How long nothing may be granted yet (ms).
    guard.closed = tonumber(guard.length)
    if guard.marked == guard.identity and guard.born <= guard.now then
      guard.closed = math.max(1, guard.born + tonumber(guard.length) - guard.now)
    end
  end
end
