-- Ends whatever holds the lock, tells all its holders, and hands the lock to the next waiter.
--
-- KEYS[5]  holds  as in holds.lua
--
-- Returns  1 if there was a hold, 0 if not
--
-- Not idempotent: the second time it ends the next holder's lease.

local value = redis.call('GET', LOCK)
look_at_clock()
if not value then
  -- A holder who has died may have left it to those who wait.
  free = 1
  pcall(serve)
  return 0
end
-- What stands beside the lock may be broken; that must not keep it.
local intact, lead, _, several = pcall(settle_holds)
-- A revocation names the grant that it ends: one that arrives late must not end another grant of the same lease. If the token is
-- not known, or several holds may have been told different ones, it names none.
local known, token = pcall(last_token)
token = string.format('%.0f', known and not several and token or 0)
local holders = { intact and lead or string.match(value, '^[^/]*') }
if intact and several then
  holders = redis.call('ZRANGE', KEYS[5], 0, -1)
end
for _, id in ipairs(holders) do
  tell(id, 'revoke ' .. id .. ' ' .. token)
end
redis.call('DEL', LOCK, KEYS[5])
free = 1
pcall(serve)
return 1
