-- The short way of release.lua: the lease holds the lock and nobody waits for it. The same answer.
--
-- lock, queue, id  as in release.lua

if redis.pcall('GET', lock) == id and redis.call('EXISTS', queue) == 0 then
  redis.call('DEL', lock)
  return 1
end
