-- Ends one lease wherever it is, and hands the lock over to the next waiter.
--
-- ARGV[1]  lease id
-- ARGV[2]  if the release should leave a gap when one is due, its length in ms (gap.lua)
--
-- Returns  RELEASED if a hold has ended, LEFT_QUEUE if a place in the queue was given up; if there was neither,
--          HELD_BY_OTHER if something else holds the lock and NOT_HELD if nothing does
--
-- Idempotent: nothing is found the second time. Another holder's lease is never touched.

-- Whether a release should leave a gap (gap.lua): the lock was granted before the current period of GAP_PERIOD us for
-- each ms of a gap began. Tokens are times, unless the clock was set back; then no gap is due until it has caught up.
local function is_gap_due(value, id, gap_ms, clock)
  local granted = tonumber(sub(value or '', #id + 2, #id + 17)) or clock.us
  return clock.us - granted > clock.us % (gap_ms * GAP_PERIOD)
end

-- Ends one of several holds of an owner. Something else that is stored in place of the holds must not keep the lock.
local function leave(r, id)
  local intact, lead, token, owner, several = pcall(expire_holds, r)
  -- Also from holds that do not count now: they might count again if their lead came back.
  local left = redis.pcall('ZREM', r.holds, id) == 1
  local last = intact and several and left and call('ZREVRANGE', r.holds, 0, 0)[1]
  if not last then return false end
  if lead == id then call('SET', r.key, write_value(last, token, owner), 'KEEPTTL') end
  expire_with_holds(r)
  return true
end

local function release(r, id, gap_ms)
  if leave(r, id) then return RELEASED end
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

-- The first fast path: the lease holds the lock, nobody waits for it, and no gap is due. In other cases, it changes
-- nothing, and returns nothing but what is stored there and whether a gap is due.
local function release_fast(lock, fence, clock, id, gap_ms)
  local value = call('GET', lock)
  local is_due = gap_ms and is_gap_due(value, id, gap_ms, clock)
  -- What follows the id has the length of a token, so there is no mark of waiters (value.lua), and no owner.
  if value and not is_due and #value == #id + 17 and string.find(value, id, 1, true) == 1 then
    call('DEL', lock)
    if fence.shared and string.find(value, fence.shared, #id + 2, true) then fence.shared = false end
    return RELEASED
  end
  return nil, value, is_due
end

-- The second, for a lock with the mark of waiters: the first in the queue gets it, if there is one.
local function hand_over_fast(lock, value, queue, waiters, fence, clock, id)
  if not value or #value ~= #id + 18 or sub(value, -1) ~= WAITED_FOR or string.find(value, id, 1, true) ~= 1 then return end
  local place = call('ZRANGEBYSCORE', queue, '1', '+inf', 'LIMIT', '0', '1')[1]
  if place then
    raise_fence(fence, sub(value, -17, -2))
    local next, token, ends = grant_fast(place, queue, waiters, terms_of('mutex', fence, lock), nil, clock, next_token, fence)
    if not next then return end
    call('SET', lock, next .. ' ' .. token .. WAITED_FOR, 'PXAT', ends)
    fence.shared = false
  else
    call('DEL', lock)
  end
  return RELEASED
end
