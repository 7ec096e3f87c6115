-- Ends whatever holds the lock, tells all its holders, and hands the lock to the next waiter.
--
-- KEYS[5]  holds  as in holds.lua
--
-- Returns  1 if there was a hold, 0 if not
--
-- Not idempotent: the second time it ends the next holder's lease.

local value = redis.call('GET', LOCK)
if not value then
  return 0
end
local lead = string.match(value, '^[^/]*')
tell(lead, 'revoke ' .. lead)
pcall(function()
  if redis.call('ZSCORE', KEYS[5], lead) then
    for _, id in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
      if id ~= lead then
        tell(id, 'revoke ' .. id)
      end
    end
  end
end)
redis.call('DEL', LOCK, KEYS[5])
-- What stands beside the lock may be broken; that must not keep it.
free = 1
pcall(serve, now_us(), nil)
return 1
