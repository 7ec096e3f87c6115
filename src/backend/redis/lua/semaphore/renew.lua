-- Restarts a lease.
--
-- ARGV[1]  'counting' or 'fair'
-- ARGV[2]  lease id
-- ARGV[3]  TTL, in ms
--
-- Returns  RENEWED or EXPIRED
--
-- Idempotent. Never takes back permits that were lost.

local function renew_permits(s, id, ttl_ms)
  ttl_ms = tonumber(ttl_ms)
  local ends_now = tonumber(call('ZSCORE', s.key, id) or 0)
  if ends_now <= s.clock.ms or call('HEXISTS', s.holds, id) == 0 then return EXPIRED end
  if not s.used or not s.ends then expire_leases(s) end
  begin_writing(s)
  set_end(s, id, ttl_ms)
  touch(s, ttl_ms)
  return RENEWED
end
