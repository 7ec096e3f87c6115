-- Ends one lease wherever it stands, or all but a part of it, and hands the permits to those waiters that now fit.
--
-- ARGV[2]  lease id
-- ARGV[3]  how many permits the lease keeps, '0' to end it
--
-- Returns  1 if a hold has ended or given back what it should, 2 if a place in line was given up, 0 if there was neither
--
-- Idempotent: never gives a lease more than it has, and finds nothing once it has ended.

local id, kept = ARGV[2], tonumber(ARGV[3])
local released = 0

local held = settle(id)
if held then
  local surplus = permits_of(held) - kept
  if kept == 0 then
    leave(id, surplus)
  elseif surplus > 0 then
    remember_fence()
    redis.call('HSET', HOLDS, id, kept .. ' ' .. string.match(held, '%d+$'))
    use(used - surplus)
  end
  released = 1
elseif kept == 0 and forget(id) then
  released = 2
end
-- If the fence was lost, nobody knows the limit until somebody states it.
if limit then
  serve()
end
return released
