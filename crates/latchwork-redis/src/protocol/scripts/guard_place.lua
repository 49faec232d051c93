-- In quarantine a claim gets its place in line, and no more. (Spliced into the try script.)
if guard.closed > 0 then
  local before = -1
  if place == 'f' then
    before = in_line or redis.call('LLEN', KEYS[3])
  elseif entry then
    leave_line(entry)
  end
  if place ~= 'n' then
    keep_place(me, place, in_line, guard.closed)
  end
  finish()
  local joined = place == 'f' and me.joined or -1
  return { 0, 'g', guard.closed, before, time[1], time[2], '', -1, joined }
end
