-- The restart guard, in front of a script: after the server may have lost data nothing is granted
-- until every lease that it may have forgotten has ended.
--
-- The last of KEYS is the marker; the last of ARGV are the run id of the process at the other end
-- of the connection (empty: ask) with @ and the number of the database, max_ttl and the length of
-- the quarantine in ms, and 1 if the server's own word may prove that nothing was lost. The marker: i identity, b the time (ms) at
-- which the quarantine began, or 0 when it is over, m and q the two lengths.
local guard = { key = KEYS[#KEYS], max = ARGV[#ARGV - 2], length = ARGV[#ARGV - 1] }
KEYS[#KEYS] = nil
do
  local time = redis.call('TIME')
  guard.us = time[1] * 1000000 + time[2]
  guard.now = math.floor(guard.us / 1000)
  guard.time = time
  local run, database = string.match(ARGV[#ARGV - 3], '^(%x*)(@%d+)$')
  if run == '' then
    run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
  end
  -- A connection ends with the process, but not with the process's role. Two databases can change
  -- places with their markers.
  local replication = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') or ''
  if run == '' or replication == '' then
    return redis.error_reply('LWGUARD the server does not say who it is')
  end
  guard.identity = run .. ':' .. replication .. database
  local marker = redis.call('HMGET', guard.key, 'i', 'b', 'm', 'q')
  guard.marked, guard.born = marker[1], tonumber(marker[2])
  if marker[3] and (marker[3] ~= guard.max or marker[4] ~= guard.length) then
    guard.other = { 3, marker[3], marker[4] }
  end
end

-- How long nothing may be granted yet (ms); 0 if grants are free.
function guard.left()
  if guard.marked ~= guard.identity then
    return tonumber(guard.length)
  elseif guard.born == 0 then
    return 0
  end
  return math.max(1, guard.born + tonumber(guard.length) - guard.now)
end
