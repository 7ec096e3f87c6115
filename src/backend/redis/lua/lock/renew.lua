-- Restarts a lease.
--
-- KEYS[1]  lock
-- ARGV[1]  lease id
-- ARGV[2]  TTL, in ms
--
-- Returns  RENEWED; TAKEN if something else is stored there, EXPIRED if nothing is
--
-- Idempotent. Never takes back a lock that was lost.

local function renew(lock, id, ttl_ms)
  local value = call('GET', lock)
  if value and names_lease(value, id) then
    call('PEXPIRE', lock, ttl_ms)
    return RENEWED
  end
  return value and TAKEN or EXPIRED
end
