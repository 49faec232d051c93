-- Tells what the marker says, and changes nothing: whether there is one, how long nothing may be
-- granted yet, whether that has begun, and the lengths that the namespace was guarded with.
local other = guard.other or { 3, guard.max, guard.length }
return {
  (guard.is_open or guard.marked) and 1 or 0,
  guard.closed,
  guard.marked == guard.identity and 1 or 0,
  other[2],
  other[3],
}
