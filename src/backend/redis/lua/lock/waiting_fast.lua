-- The fast paths of a batch for a lock with waiters. The slow path finds by itself whatever goes wrong in them.

-- A waiter that repeats its request, or a new one. Also returns what acquire_again_fast.lua has seen.
local function wait_fast(seen, lock, queue, clock, id, ttl_ms)
  local waiters = sub(queue, 1, -6) .. 'waiters'
  local done, answer, still_seen = pcall(acquire_again_fast, seen, lock, queue, waiters, clock, id, ttl_ms)
  if not done then return nil, nil end
  if not answer then
    done, answer = pcall(join_fast, lock, queue, waiters, clock, id, ttl_ms)
  end
  return done and answer, still_seen
end

-- The release of a holder that others wait for.
local function release_waited_fast(lock, value, queue, fence, clock, id)
  local done, answer = pcall(hand_over_fast, lock, value, queue, sub(queue, 1, -6) .. 'waiters', fence, clock, id)
  return done and answer
end

return wait_fast, release_waited_fast
