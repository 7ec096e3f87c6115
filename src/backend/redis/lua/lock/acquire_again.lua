-- The short way of acquire.lua for a request that stands in line already, while somebody else holds the lock: alive for another
-- lease. The same answer. Those who wait repeat themselves together, so it is for batches.

-- The line that the operation before was about; batch.lua forgets it when something may have changed there.
local line

local function look_at_line(lock, queue)
  return {
    lock = lock, holder = redis.call('GET', lock), remaining = redis.call('PTTL', lock),
    kept = redis.call('PTTL', queue), parked = redis.call('ZCOUNT', queue, '-inf', '(0'),
  }
end

-- Parameters as in acquire.lua.
local function acquire_again(lock, queue, waiters, id, lease_ms)
  local ticket = string.match(redis.call('HGET', waiters, id) or '', '^(%d+) %d+ %d+ 1$')
  if not ticket then
    return
  end
  if not line or line.lock ~= lock then
    line = look_at_line(lock, queue)
  end
  local before = redis.call('ZRANK', queue, ticket .. ' ' .. id)
  -- Nobody holds the lock, it has no expiry, or this request holds it or is to get its place back.
  if line.remaining < 0 or line.holder == id or not before or before < line.parked then
    return
  end
  redis.call('HSET', waiters, id, ticket .. ' ' .. lease_ms .. ' ' .. in_full(now_ms + lease_ms) .. ' 1')
  if line.kept < lease_ms * 1.5 then
    line.kept = lease_ms * 2
    redis.call('PEXPIRE', queue, line.kept)
    redis.call('PEXPIRE', waiters, line.kept)
  end
  return { line.remaining, before, ticket }
end

