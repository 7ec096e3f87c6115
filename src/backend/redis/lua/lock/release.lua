-- Ends one lease wherever it is, and hands the lock over to the next waiter.
--
-- KEYS     as in lock.lua
-- ARGV[1]  lease id
-- ARGV[2]  if the release should leave a gap when one is due, its length in ms (gap.lua)
--
-- Returns  RELEASED if a hold has ended, LEFT_QUEUE if a place in the queue was given up; if there was neither, HELD_BY_OTHER if
--          something else holds the lock and NOT_HELD if nothing does
--
-- Idempotent: nothing is found the second time. Another holder's lease is never touched.

local function release(r, id, gap_ms)
  local value = call('GET', r.key)
  -- If the queue is broken, the lock is released all the same. Waiters find out when they repeat their requests.
  local waiting = tonumber(redis.pcall('ZCARD', r.queue)) or 0
  if value and names_lease(value, id) then
    -- First: a server that is out of memory refuses writes, except those of a script that has already written.
    call('DEL', r.key)
    if gap_ms and is_gap_due(value, id, gap_ms, r.clock) then
      pcall(leave_gap, r, gap_ms)
    elseif waiting > 0 then
      raise_fence(r.fence, sub(value, #id + 2, #id + 17))
      r.free = 1
      pcall(hand_over, r)
    end
    return RELEASED
  end
  if waiting > 0 and remove(r, id) then
    local gap = gap_left(r)
    if gap then
      -- This may have been the waiter that knew when the gap ends.
      tend_gap(r, gap)
    elseif not value then
      r.free = 1
      hand_over(r)
    end
    return LEFT_QUEUE
  end
  return value and HELD_BY_OTHER or NOT_HELD
end

