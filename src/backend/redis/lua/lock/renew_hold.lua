-- Lets a hold of an owner begin anew, after line.lua and holds.lua.
--
-- ARGV[1]  lease id
-- ARGV[2]  lease, in ms
--
-- Returns  'renewed'; 'taken' if other leases hold the lock, 'expired' if none does
--
-- Idempotent. Never takes back a hold that was lost.

look_at_clock()
local lead, _, several = settle_holds()
if several and redis.call('ZSCORE', HOLDS, ARGV[1]) then
  redis.call('ZADD', HOLDS, in_full(now_ms + ARGV[2]), ARGV[1])
  expire_with_holds()
elseif not several and lead == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  return redis.call('EXISTS', KEYS[1]) == 1 and 'taken' or 'expired'
end
redis.call('PEXPIRE', FENCE, FENCE_MS)
return 'renewed'
