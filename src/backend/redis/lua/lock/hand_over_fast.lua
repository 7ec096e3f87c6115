-- The fast path of release.lua for a lock with the mark of waiters (value.lua): the first in the queue gets it, if
-- there is one. Returns nothing, and changes nothing, in other cases.

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
