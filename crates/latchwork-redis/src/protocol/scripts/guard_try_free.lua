-- Who holds a free key's short script cannot tell, but whether it is this claim.
if guard.closed > 0 and #KEYS == 3 then
  local held = redis.call('GET', KEYS[1])
  if not held or string.sub(held, 1, 5) ~= string.sub(ARGV[1], 1, 5)
    or string.sub(held, 8, 39) ~= string.sub(ARGV[1], 8, 39) then
    return { 0, 'g', guard.closed, -1, guard.time[1], guard.time[2], '' }
  end
end
