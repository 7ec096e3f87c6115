-- Changes the limit for all clients, and hands permits that become free over to those waiters that now fit.
--
-- ARGV[1]  'counting' or 'fair'
-- ARGV[2]  the limit
-- ARGV[3]  for how long it stays in force if the semaphore is not used, in ms
--
-- Returns  the version, which stays as it was if a limit was in force
--
-- Idempotent. Revokes nothing: while more permits are held than the limit, no request is granted.

local function resize(s, limit, ttl_ms)
  expire_leases(s)
  put_in_force(s, tonumber(limit), tonumber(ttl_ms))
  -- A waiter for more than the new limit leaves the queue, repeats its request, and learns why.
  for _, id in ipairs(call('HKEYS', s.waiters)) do
    local request = waiter(s, id)
    if request and request.permits > s.limit then
      remove(s, id)
      tell(id, ASK .. ' ' .. id .. ' ' .. s.key)
    end
  end
  hand_over_permits(s)
  return s.version
end
