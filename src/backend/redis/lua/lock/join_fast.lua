-- The fast path of acquire.lua for a new request that has to wait for a mutex for which others have waited, so that it is marked
-- (value.lua). Answers nothing, and has changed nothing, if the case is another.

local function join_fast(lock, queue, waiters, clock, id, lease_ms)
  local value, remaining = call('GET', lock), call('PTTL', lock)
  if not value or sub(value, -1) ~= WAITED_FOR or remaining < 0 or names_lease(value, id) then return end
  local newest, ticket = call('ZREVRANGE', queue, '0', '0')[1], clock.text
  local before = newest and call('ZCARD', queue) or 0
  -- One in fifty goes the slow path, which prunes, and whoever makes the queue a long one, for its index.
  if (newest and newest >= ticket) or clock.us % PRUNE_EVERY == 0 or before == INDEXED_AT then return end
  local record = ticket .. ' ' .. lease_ms .. ' ' .. millis(clock.ms + lease_ms) .. ' 1'
  if call('HSETNX', waiters, id, record) == 0 then return end
  call('ZADD', queue, '1', ticket .. ' ' .. id)
  keep(queue, waiters, lease_ms)
  return { remaining, before, ticket }
end
