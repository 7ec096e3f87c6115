-- Asks for the lock, or asks again.
--
-- ARGV[1]  lease id
-- ARGV[2]  lease, in ms
-- ARGV[3]  '1' or absent to stand in line if somebody else holds the lock, '0' to leave at once
-- ARGV[4]  expiry in ms for a lock that has none, '0' or absent to leave such a lock alone
-- ARGV[5]  the owner of a reentrant lock, absent for a mutex
--
-- Returns  the token if granted now
--          {token, ms until the lease ends} if it was granted before
--          {ms until the holder's lease ends or -1, waiters before this one, parked ones included, ticket} if queued
--          0 if somebody else holds the lock
--
-- Idempotent per lease id: the holder is told its token again, and its lease goes on as it was, so that a client which asks and
-- hears no answer does not keep the lock. A waiter keeps its place and counts as alive for another lease. This one request therefore proves a waiter alive, finds an
-- expired holder, finds a grant that was not heard of, and stands in line again after the store lost its
-- memory. If the lock is free but others wait, it goes to the oldest of them.

local id, lease_ms, waits, repair_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3] ~= '0', tonumber(ARGV[4] or 0)
local request = { lease_ms = lease_ms, owner = ARGV[5] }

local holder = redis.call('GET', LOCK)
look_at_clock()
if holder == (request.owner and id .. '/' .. request.owner or id) then
  local token, left = present_token(), redis.call('PTTL', LOCK)
  redis.call('SET', FENCE, token, 'PX', FENCE_MS)
  if left < 0 then
    left = lease_ms
    redis.call('PEXPIRE', LOCK, left)
  end
  return { token, left }
end

local ticket, others
if waits then
  ticket, others = stand_in_line(id, lease_ms, 1, request.owner)
end
if not holder then
  free = 1
  local token = serve(id)
  if not token and free == 1 then
    token = next_token()
    admit(id, request, token)
  end
  -- Its owner may have been let in under another lease.
  token = token or (request.owner and enter())
  if token then
    return token
  end
end
local remaining = redis.call('PTTL', LOCK)
if remaining == -1 and repair_ms > 0 then
  redis.call('PEXPIRE', LOCK, repair_ms)
  remaining = repair_ms
end
if not waits then
  return 0
end
return { remaining, places_before(ticket, id, others), ticket }
