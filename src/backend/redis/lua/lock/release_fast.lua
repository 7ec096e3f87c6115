-- The fast path of release.lua: the lease holds the lock, and nobody waits for it, or the first in the queue can have it. Answers
-- nothing, and has changed nothing, if the case is another.

local function release_fast(lock, queue, waiters, fence, clock, id)
  local value = call('GET', lock)
  if not value or string.find(value, id, 1, true) ~= 1 then return end
  -- A token has 16 digits: so what follows the id is a token and nothing else, or a token and the mark (value.lua).
  local marked = #value == #id + 18 and sub(value, -1) == WAITED_FOR
  if not marked and #value ~= #id + 17 then return end
  local place = marked and call('ZRANGEBYSCORE', queue, '1', '+inf', 'LIMIT', '0', '1')[1]
  if place then
    raise_fence(fence, sub(value, -17, -2))
    local next, token, ends = grant_fast(place, queue, waiters, lock, 'mutex', nil, fence, clock)
    if not next then return end
    call('SET', lock, next .. ' ' .. token .. WAITED_FOR, 'PXAT', ends)
    fence.shared = false
    return RELEASED
  end
  call('DEL', lock)
  if fence.shared and string.find(value, fence.shared, #id + 2, true) then fence.shared = false end
  return RELEASED
end
