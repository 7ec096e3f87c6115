-- The fast path of acquire.lua for a request that waits already, while somebody else holds the lock: alive for another lease.
-- Answers nothing, and has changed nothing, if the case is another. Those who wait ask again together, so it is for batches.
--
-- `seen` is the queue that the operation before was about, as long as nothing else may have changed there.

local function look_at_queue(lock, queue)
  return {
    lock = lock, value = call('GET', lock), remaining = call('PTTL', lock),
    kept = call('PTTL', queue), unreachable = call('ZCOUNT', queue, '-inf', '(0'),
  }
end

local function acquire_again_fast(seen, lock, queue, waiters, clock, id, lease_ms)
  local ticket = match(call('HGET', waiters, id) or '', '^(%d+) %d+ %d+ 1$')
  if not ticket then return nil, seen end
  if not seen or seen.lock ~= lock then seen = look_at_queue(lock, queue) end
  local before = call('ZRANK', queue, ticket .. ' ' .. id)
  -- Nobody holds the lock, it has no expiry, or this request holds it or is to get its place back.
  if seen.remaining < 0 or names_lease(seen.value, id) or not before or before < seen.unreachable then
    return nil, seen
  end
  call('HSET', waiters, id, ticket .. ' ' .. lease_ms .. ' ' .. millis(clock.ms + lease_ms) .. ' 1')
  if seen.kept < lease_ms * 1.5 then
    seen.kept = lease_ms * 2
    call('PEXPIRE', queue, seen.kept)
    call('PEXPIRE', waiters, seen.kept)
  end
  return { seen.remaining, before, ticket }, seen
end

