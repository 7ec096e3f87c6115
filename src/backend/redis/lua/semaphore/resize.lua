-- Changes the limit for everybody, and hands permits that become free over to those waiters that now fit.
--
-- KEYS     as in semaphore.lua
-- ARGV[1]  'counting' or 'fair'
-- ARGV[2]  the limit
-- ARGV[3]  for how long it stays in force if nobody uses the semaphore, in ms
--
-- Returns  the version, which stays as it was if a limit was in force
--
-- Idempotent. Takes nothing away: while more is held than the limit, nobody is let in.

local function resize(s, limit, lease_ms)
  expire_leases(s)
  put_in_force(s, tonumber(limit), tonumber(lease_ms))
  -- Whoever waits for more than anybody can have now leaves the queue, asks, and is told why.
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

