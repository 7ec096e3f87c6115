-- Tells who holds the lock and who waits for it. Changes nothing.
--
-- KEYS     as in line.lua, lock.lua and holds.lua
-- ARGV[1]  'everybody', or 'numbers' for empty lists
--
-- Returns  {what stands under the lock or nil, ms until that ends (-1 never, -2 there is nothing), last token or nil,
--           {lease id, ms for which it counts as alive, permits, ...} in order of arrival, the living only,
--           {lease id, ms until it ends, ...} of the owner's holds if there are several}

local value, holds, waiters = redis.call('GET', KEYS[1]), {}, {}
if ARGV[1] == 'everybody' then
  local now = math.floor(now_us() / 1000)
  waiters = living(now)
  local lead = string.match(value or '', '^([^/]+)/')
  if lead and redis.call('ZSCORE', KEYS[5], lead) then
    for i, part in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], string.format('%.0f', now), '+inf', 'WITHSCORES')) do
      table.insert(holds, i % 2 == 1 and part or tonumber(part) - now)
    end
  end
end
return { value, redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[4]), waiters, holds }
