-- The fast path of acquire.lua for a new request that must wait for a mutex that has had waiters, so that it is marked
-- (value.lua). Returns nothing, and changes nothing, in other cases.

local function join_fast(lock, queue, waiters, clock, id, ttl_ms)
  local value, remaining = call('GET', lock), call('PTTL', lock)
  if not value or sub(value, -1) ~= WAITED_FOR or remaining < 0 or names_lease(value, id) then return end
  local newest, ticket = call('ZREVRANGE', queue, '0', '0')[1], clock.text
  local before = newest and call('ZCARD', queue) or 0
  -- One in fifty takes the slow path, which prunes, and so does the one that makes the queue long enough for an index.
  if (newest and newest >= ticket) or clock.us % PRUNE_EVERY == 0 or before == INDEXED_AT then return end
  local record = ticket .. ' ' .. ttl_ms .. ' ' .. millis(clock.ms + ttl_ms) .. ' 1'
  if call('HSETNX', waiters, id, record) == 0 then return end
  call('ZADD', queue, '1', ticket .. ' ' .. id)
  keep(queue, waiters, ttl_ms)
  return { remaining, before, ticket }
end
