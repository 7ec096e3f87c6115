-- Lets a lease begin anew.
--
-- ARGV[2]  lease id
-- ARGV[3]  lease, in ms
--
-- Returns  'renewed' or 'expired'
--
-- Idempotent. Never takes back permits that were lost.

local ends_now = tonumber(redis.call('ZSCORE', HOLDERS, ARGV[2]) or 0)
if ends_now <= now_ms or redis.call('HEXISTS', HOLDS, ARGV[2]) == 0 then
  return 'expired'
end
if not used or not ends then
  settle()
end
extend(ARGV[2], tonumber(ARGV[3]))
return 'renewed'
