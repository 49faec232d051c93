if not guard.is_open then
  if guard.other then
    return guard.other
  end

  local function write(born)
    --#include displaced.lua
    local lengths = ' ' .. guard.max .. ' ' .. guard.length
    redis.call('SET', KEYS[1], guard.identity .. ' ' .. string.format('%.0f', born) .. lengths)
  end

  if guard.marked ~= guard.identity or guard.now < guard.born then
    write(guard.now)
  elseif guard.now >= guard.born + guard.length then
    write(0)
    guard.closed = 0
  end
end
