-- Lets a lease begin anew.
--
-- KEYS[1]  lock: string, the holder's lease id
-- KEYS[2]  fence: the last token; remembered for another day, since the lock is in use
-- ARGV[1]  lease id
-- ARGV[2]  lease, in ms
--
-- Returns  'renewed'; 'taken' if another lease holds the lock, 'expired' if none does
--
-- Idempotent. Never takes back a lock that was lost.

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], 86400000)
  return 'renewed'
end
return holder and 'taken' or 'expired'
