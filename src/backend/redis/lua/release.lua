-- Ends one lease wherever it stands, or whatever holds the lock; hands the lock to the next waiter.
--
-- ARGV[1]  lease id, or '' for whoever holds the lock
--
-- Returns  1 if a hold has ended, 2 if a place in line was given up; if there was neither, 3 if another lease
--          holds the lock and 0 if none does
--
-- Idempotent per lease id: nothing is found the second time. Another holder's lease is never touched, except
-- with ''; that holder is told.

local id = ARGV[1]
local anyone = id == ''

local holder = redis.call('GET', LOCK)
local waiting = redis.call('ZCARD', QUEUE)

if holder and (anyone or holder == id) then
  if anyone then
    tell(holder, 'revoke ' .. holder)
  end
  -- What stands beside the lock may be broken; that must not keep it. Whoever waits is told when it asks again.
  local intact, new_holder = true, nil
  if waiting > 0 then
    intact, new_holder = pcall(hand_over, now_us(), nil)
  end
  if not intact or not new_holder then
    redis.call('DEL', LOCK)
  end
  return 1
end
if not anyone and waiting > 0 and forget(id) then
  if not holder then
    hand_over(now_us(), nil)
  end
  return 2
end
return holder and 3 or 0
