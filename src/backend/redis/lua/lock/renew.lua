-- Lets a lease begin anew; renew_alone.lua has done so if it could.
--
-- KEYS[1]  lock: string, the holder's lease id
-- KEYS[2]  fence: the last token
-- ARGV[1]  lease id
-- ARGV[2]  lease, in ms
--
-- Returns  'renewed'; 'taken' if another lease holds the lock, 'expired' if none does
--
-- Idempotent. Never takes back a lock that was lost.

return redis.call('GET', KEYS[1]) and 'taken' or 'expired'
