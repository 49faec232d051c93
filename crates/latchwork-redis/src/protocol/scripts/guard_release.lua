-- In quarantine nobody is served. (Spliced into the release script.)
if not guard.is_open then
  finish()
  return { released, time[1], time[2], 0, -1, before, taken }
end
