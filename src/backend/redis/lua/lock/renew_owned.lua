-- Restarts the lease of an owner's hold.
--
-- ARGV[1]  lease id
-- ARGV[2]  TTL, in ms
--
-- Returns  RENEWED; TAKEN if other leases hold the lock, EXPIRED if none does
--
-- Idempotent. Never takes back a hold that was lost.

local function renew_owned(r, id, ttl_ms)
  local lead, _, _, several = expire_holds(r)
  if several and call('ZSCORE', r.holds, id) then
    call('ZADD', r.holds, millis(r.clock.ms + ttl_ms), id)
    expire_with_holds(r)
  elseif not several and lead == id then
    call('PEXPIRE', r.key, ttl_ms)
  else
    return call('EXISTS', r.key) == 1 and TAKEN or EXPIRED
  end
  return RENEWED
end
