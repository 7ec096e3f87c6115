-- Asks for the lock, or asks again.
--
-- ARGV[1]  lease id
-- ARGV[2]  lease, in ms
-- ARGV[3]  '1' or absent to stand in line if somebody else holds the lock, '0' to leave at once
-- ARGV[4]  expiry in ms for a lock that has none, '0' or absent to leave such a lock alone
--
-- Returns  the token if granted
--          {ms until the holder's lease ends or -1, waiters before this one, parked ones included} if queued
--          0 if somebody else holds the lock
--
-- Idempotent per lease id: the holder is told its token again and its lease begins anew; a waiter keeps its
-- place and counts as alive for another lease. This one request therefore proves a waiter alive, finds an
-- expired holder, finds a grant that was not heard of, and stands in line again after the store lost its
-- memory. If the lock is free but others wait, it goes to the oldest of them.

local id, lease_ms, waits, repair_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3] ~= '0', tonumber(ARGV[4] or 0)

-- A client that could not be told for a while is heard again: all its waiters get back the places they had on
-- arrival. Done once per such time, by the first of them that asks.
local function take_places_back()
  local client = string.match(id, '^[^.]+%.')
  local records = redis.call('HGETALL', WAITERS)
  for i = 1, #records, 2 do
    if string.sub(records[i], 1, #client) == client then
      redis.call('ZADD', QUEUE, string.match(records[i + 1], '^%d+'), records[i])
    end
  end
end

local function stand_in_line(now)
  local ticket = waiter(id)
  if not ticket then
    ticket = next_ticket(now)
  elseif tonumber(redis.call('ZSCORE', QUEUE, id)) ~= ticket then
    take_places_back()
  end
  local alive_until = math.floor(now / 1000) + lease_ms
  redis.call('HSET', WAITERS, id, string.format('%.0f %.0f %.0f', ticket, lease_ms, alive_until))
  redis.call('ZADD', QUEUE, string.format('%.0f', ticket), id)
  -- The line goes with its last waiter, and by itself if that one dies.
  for _, key in ipairs({ QUEUE, WAITERS }) do
    if redis.call('PTTL', key) < lease_ms * 1.5 then
      redis.call('PEXPIRE', key, lease_ms * 2)
    end
  end
end

local holder = redis.call('GET', LOCK)
local now = now_us()

if holder == id then
  return grant(id, lease_ms, tonumber(redis.call('GET', FENCE)) or next_token(now))
end
if waits then
  stand_in_line(now)
end
if not holder then
  local new_holder, token = hand_over(now, id)
  if not new_holder then
    return grant(id, lease_ms, next_token(now))
  elseif new_holder == id then
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
return { remaining, redis.call('ZRANK', QUEUE, id) }
