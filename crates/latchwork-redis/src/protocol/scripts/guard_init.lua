-- Somebody vouches that no lock is held: grants are free from now on. The answer tells whether the
-- namespace had other lengths.
if guard.is_open then
  return { 0 }
end
--#include displaced.lua
redis.call('SET', KEYS[1], guard.identity .. ' 0 ' .. guard.max .. ' ' .. guard.length)
return guard.other or { 0 }
