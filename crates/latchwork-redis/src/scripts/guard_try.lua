if not guard.is_open then
  if guard.other then
    return guard.other
  end

  local function write(born)
    local lengths = ' ' .. guard.max .. ' ' .. guard.length
    redis.call('SET', guard.key, guard.identity .. ' ' .. string.format('%.0f', born) .. lengths)
  end

  -- Whether a server that never saw this namespace can have lost nothing of it.
  local function nothing_was_lost()
    if ARGV[#ARGV] ~= '1' then
      return false
    end
    local info = redis.call('INFO', 'all')
    local up = tonumber(string.match(info, '\nuptime_in_seconds:(%d+)'))
    for _, name in ipairs({
      'flushall', 'flushdb', 'swapdb', 'config|resetstat', 'config', 'debug', 'replicaof', 'slaveof',
    }) do
      if string.find(info, '\ncmdstat_' .. name .. ':', 1, true) then
        return false
      end
    end
    return up and up * 1000 > tonumber(guard.length) + 1000
      and string.match(info, '\nevicted_keys:(%d+)') == '0'
      and string.match(info, '\nsecond_repl_offset:(%-?%d+)') == '-1'
  end

  local proven = guard.is_new and nothing_was_lost()
  if proven or (guard.marked == guard.identity and guard.now >= guard.born + guard.length) then
    -- The tokens that were forgotten came from a clock that had not reached this moment.
    local last = tonumber(redis.call('GET', KEYS[2]) or 0)
    if last < guard.us then
      redis.call('SET', KEYS[2], string.format('%.0f', guard.us), 'PX', 604800000)
    end
    write(0)
    guard.closed = 0
  elseif guard.marked ~= guard.identity or guard.now < guard.born then
    write(guard.now)
  end

  -- Who holds a free key's short script cannot tell, but whether it is this claim.
  if guard.closed > 0 and #KEYS == 3 then
    local held = redis.call('GET', KEYS[1])
    if not held or string.sub(held, 1, 5) ~= string.sub(ARGV[1], 1, 5)
      or string.sub(held, 8, 39) ~= string.sub(ARGV[1], 8, 39) then
      return { 0, 'g', guard.closed, -1, guard.time[1], guard.time[2], '' }
    end
  end
end
