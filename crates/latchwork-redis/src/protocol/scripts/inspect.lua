-- Tells what there is of a key, and changes nothing. KEYS as for a try. ARGV: how many of each kind to
-- tell of at most, for the server does nothing else meanwhile.
local last = ARGV[1] - 1
local members = redis.call('ZRANGE', KEYS[5], 0, last, 'WITHSCORES')
local marks = redis.call('ZRANGE', KEYS[6], 0, last)
local details = {}
local function note(id)
  details[#details + 1] = id
  details[#details + 1] = redis.call('HGET', KEYS[4], id) or ''
end
for i = 1, #members, 2 do
  note(members[i])
end
for _, id in ipairs(marks) do
  note(id)
end
return {
  redis.call('TYPE', KEYS[1])['ok'],
  redis.call('TYPE', KEYS[1])['ok'] == 'string' and redis.call('GET', KEYS[1]) or '',
  redis.call('PTTL', KEYS[1]),
  redis.call('LRANGE', KEYS[3], 0, last),
  members,
  marks,
  details,
  redis.call('TIME'),
  redis.call('ZCARD', KEYS[5]) - #members / 2,
  redis.call('LLEN', KEYS[3]) + redis.call('ZCARD', KEYS[6]),
}
