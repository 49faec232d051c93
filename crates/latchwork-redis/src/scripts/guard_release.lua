-- In quarantine nobody is served. (Spliced into the release script.)
if guard.other or guard.left() > 0 then
  finish()
  return { released, time[1], time[2] }
end
