-- Ends one lease wherever it stands, and hands the lock to the next waiter.
--
-- ARGV[1]  lease id
--
-- Returns  1 if a hold has ended, 2 if a place in line was given up; if there was neither, 3 if another lease
--          holds the lock and 0 if none does
--
-- Idempotent: nothing is found the second time. Another holder's lease is never touched.

local value = redis.call('GET', LOCK)
-- What stands beside the lock may be broken; that must not keep it. Whoever waits is told when it asks again.
local waiting = tonumber(redis.pcall('ZCARD', QUEUE)) or 0

if value and string.match(value, '^[^/]*') == ARGV[1] then
  local intact = true
  free = 1
  if waiting > 0 then
    look_at_clock()
    intact = pcall(serve)
  end
  if not intact or free == 1 then
    redis.call('DEL', LOCK)
  end
  return 1
end
if waiting > 0 and forget(ARGV[1]) then
  if not value then
    free = 1
    look_at_clock()
    serve()
  end
  return 2
end
return value and 3 or 0
