-- The fast path of acquire.lua for a request that already waits, while another client holds the lock: the waiter counts as
-- alive for another TTL. Returns nothing, and changes nothing, in other cases. Waiting requests are repeated together, so this is for
-- batches.
--
-- `seen` is the queue used by the previous operation, as long as nothing else may have changed in it.

local function look_at_queue(lock, queue)
  return {
    lock = lock, value = call('GET', lock), remaining = call('PTTL', lock),
    kept = call('PTTL', queue), unreachable = call('ZCOUNT', queue, '-inf', '(0'),
  }
end

local function acquire_again_fast(seen, lock, queue, waiters, clock, id, ttl_ms)
  local ticket = match(call('HGET', waiters, id) or '', '^(%d+) %d+ %d+ 1$')
  if not ticket then return nil, seen end
  if not seen or seen.lock ~= lock then seen = look_at_queue(lock, queue) end
  local before = call('ZRANK', queue, ticket .. ' ' .. id)
  -- The lock is free or has no expiry, or this request holds it or must get its place back.
  if seen.remaining < 0 or names_lease(seen.value, id) or not before or before < seen.unreachable then
    return nil, seen
  end
  call('HSET', waiters, id, ticket .. ' ' .. ttl_ms .. ' ' .. millis(clock.ms + ttl_ms) .. ' 1')
  if seen.kept < ttl_ms * 1.5 then
    seen.kept = ttl_ms * 2
    call('PEXPIRE', queue, seen.kept)
    call('PEXPIRE', waiters, seen.kept)
  end
  return { seen.remaining, before, ticket }, seen
end

