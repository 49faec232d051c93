-- Tells what the marker says, and changes nothing: whether there is one, how long nothing may be
-- granted yet, whether that has begun, and the lengths that the namespace was guarded with.
local marker = redis.call('HMGET', guard.key, 'm', 'q')
return {
  guard.marked and 1 or 0,
  guard.left(),
  guard.marked == guard.identity and 1 or 0,
  marker[1] or '',
  marker[2] or '',
}
