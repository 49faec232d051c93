-- Deletes the markers that name this database and are in another one: SWAPDB has brought them there, and with
-- them the data that was here before. If it comes back, the server has forgotten what was granted meanwhile, and
-- a marker of its own would hide that. Every marker that is written here is written behind this, so at most one
-- set of data is whole here. Without the right to SELECT nothing is deleted: `doctor` says so.
local keyspace = redis.pcall('INFO', 'keyspace')
if type(keyspace) == 'string' then
  local ending = '@' .. guard.database
  for other in string.gmatch(keyspace, 'db(%d+):keys=') do
    if other ~= guard.database and not redis.pcall('SELECT', other).err then
      local marker = redis.pcall('GET', KEYS[1])
      local identity = type(marker) == 'string' and string.match(marker, '^%S+') or ''
      if string.sub(identity, -#ending) == ending then
        redis.call('DEL', KEYS[1])
      end
      redis.call('SELECT', guard.database)
    end
  end
end
