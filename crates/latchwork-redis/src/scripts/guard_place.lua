-- In quarantine a claim gets its place in line, and no more. (Spliced into the try script.)
if guard.closed > 0 then
  local place_held = call('ZSCORE', LINE, me.id)
  local before = -1
  if place == 'f' then
    before = call('ZRANK', LINE, me.id) or call('ZCARD', LINE)
  elseif place_held then
    leave_line(me.id)
  end
  if place ~= 'n' then
    keep_place(me, place, place_held, guard.closed)
  end
  finish()
  return { 0, 'g', guard.closed, before, time[1], time[2], '' }
end
