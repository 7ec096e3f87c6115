-- Ends one lease wherever it is, or reduces it, and hands the permits over to those waiters that now fit.
--
-- KEYS     as in semaphore.lua
-- ARGV[1]  'counting' or 'fair'
-- ARGV[2]  lease id
-- ARGV[3]  how many permits the lease keeps, '0' to end it
--
-- Returns  RELEASED if a hold has ended or returned what it should, LEFT_QUEUE if a place in the queue was given up, NOT_HELD
--          if there was neither
--
-- Idempotent: never gives a lease more than it has, and finds nothing once it has ended.

local function release_permits(s, id, kept)
  kept = tonumber(kept)
  local answer = NOT_HELD
  local held = expire_leases(s, id)
  if held then
    local surplus = permits_of(held) - kept
    if kept == 0 then
      end_hold(s, id, surplus)
    elseif surplus > 0 then
      begin_writing(s)
      call('HSET', s.holds, id, kept .. ' ' .. match(held, '%d+$'))
      use(s, s.used - surplus)
    end
    answer = RELEASED
  elseif kept == 0 and remove(s, id) then
    answer = LEFT_QUEUE
  end
  -- If the state was lost, the limit is unknown until a request states it.
  if s.limit then hand_over_permits(s) end
  return answer
end

