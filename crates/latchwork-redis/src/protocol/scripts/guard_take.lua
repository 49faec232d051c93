-- In quarantine, or at the end of one, each claim has to ask by itself.
if not guard.is_open then
  local answer = {}
  for i = 1, guard.keys / 2 - 1 do
    answer[i] = false
  end
  return answer
end
