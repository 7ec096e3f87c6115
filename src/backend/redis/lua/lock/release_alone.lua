-- The release of a lock in a call of its own: first the fast paths of release.lua, the first of them in one piece.

local lock, id, gap_ms, is_due = KEYS[1], ARGV[1], ARGV[2], false
local value = call('GET', lock)
if gap_ms then
  -- As in is_gap_due.
  local time = call('TIME')
  local now = time[1] * 1e6 + time[2]
  is_due = now - (tonumber(sub(value or '', #id + 2, #id + 17)) or now) > now % (gap_ms * GAP_PERIOD)
end
-- What follows the id has the length of a token, so there is no mark of waiters (value.lua), and no owner.
if value and not is_due and sub(value, 1, -18) == id then
  call('DEL', lock)
  return RELEASED
end

OTHERWISE

local clock, fence, queue = prepare()
if not is_due then
  local done, answer = pcall(hand_over_fast, lock, value, queue, sub(queue, 1, -6) .. 'waiters', fence, clock, id)
  if done and answer then return answer end
end

OTHERWISE

return release(lock_at(lock, queue, fence, clock), id, gap_ms)
