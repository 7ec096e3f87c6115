-- The short way of renew.lua: the lease holds the lock. Its fence is remembered for another day, since the lock is in use. The
-- same answer.
--
-- lock, fence, id, lease_ms  as in renew.lua

if redis.pcall('GET', lock) == id then
  redis.call('PEXPIRE', lock, lease_ms)
  redis.call('PEXPIRE', fence, '86400000')
  return 'renewed'
end
