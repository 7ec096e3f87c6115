-- Changes the limit for everybody, and hands permits that become free to those waiters that now fit.
--
-- ARGV[2]  the limit
-- ARGV[3]  for how long it stays in force if nobody uses the semaphore, in ms
--
-- Returns  the reign, which stays as it was if a limit was in force
--
-- Idempotent. Takes nothing away: while more is held than the limit, nobody is let in.

settle()
put_in_force(tonumber(ARGV[2]), tonumber(ARGV[3]))
-- Whoever waits for more than anybody can have now leaves the line, asks, and is told why.
for _, id in ipairs(redis.call('HKEYS', WAITERS)) do
  local request = waiter(id)
  if request and request.permits > limit then
    forget(id)
    tell(id, 'ask ' .. id)
  end
end
serve()
return reign
