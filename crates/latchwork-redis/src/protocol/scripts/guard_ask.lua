-- In quarantine, or at the end of one, the whole script decides. (Spliced into the short scripts.)
if not guard.is_open then
  return false
end
