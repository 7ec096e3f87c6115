-- A semaphore: what its scripts share, after line.lua.
--
-- KEYS[1]  holders  sorted set: lease ids by the time their leases end, in ms
-- KEYS[4]  fence    hash: "token" and "ticket", the last ones; "limit", the number of permits; "reign", when that came into
--                   force; "lapse", until when, in ms, it stays in force if nobody holds or waits
-- KEYS[5]  holds    hash: lease id -> "permits token", and "used", their sum. Has the same leases as the holders.
-- ARGV[1]  'counting' or 'fair'
--
-- All times are the server's. Holders and holds go with the last lease, and by themselves if nobody is heard of.

local HOLDERS, HOLDS = KEYS[1], KEYS[5]
local now = now_us()
local now_ms = math.floor(now / 1000)
local fence = redis.call('HMGET', FENCE, 'token', 'limit', 'reign', 'lapse', 'ticket')
local last, reign, lapse = tonumber(fence[1]) or 0, fence[3], tonumber(fence[4]) or 0
local used = 0

kind, by_size = ARGV[1], ARGV[1] == 'counting'

last_token = function()
  return last
end

last_ticket = function()
  return tonumber(fence[5]) or 0
end

remember_ticket = function(ticket)
  redis.call('HSET', FENCE, 'ticket', ticket)
end

kind_of = function()
  return string.format('%s/%.0f/%s', kind, limit, reign)
end

local function permits_of(record)
  return tonumber(string.match(record, '^%d+'))
end

-- Somebody from outside has changed one of the two keys: what is in both counts.
local function recount()
  local records = redis.call('HGETALL', HOLDS)
  redis.call('DEL', HOLDS)
  for i = 1, #records, 2 do
    if records[i] ~= 'used' and redis.call('ZSCORE', HOLDERS, records[i]) then
      redis.call('HSET', HOLDS, records[i], records[i + 1])
      redis.call('HINCRBY', HOLDS, 'used', string.match(records[i + 1], '^%d+'))
    end
  end
  for _, id in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    if redis.call('HEXISTS', HOLDS, id) == 0 then
      redis.call('ZREM', HOLDERS, id)
    end
  end
  redis.call('PEXPIRE', HOLDS, math.max(redis.call('PTTL', HOLDERS), 1))
end

-- Ends the hold of `id`, which has `permits`.
local function leave(id, permits)
  redis.call('HDEL', HOLDS, id)
  used = redis.call('HINCRBY', HOLDS, 'used', string.format('%.0f', -permits))
  if redis.call('ZREM', HOLDERS, id) == 1 and redis.call('EXISTS', HOLDERS) == 0 then
    redis.call('DEL', HOLDS)
  end
end

-- Ends the leases whose time is over. Each is met once.
local function settle()
  local holders = redis.call('ZCARD', HOLDERS)
  if redis.call('HLEN', HOLDS) ~= (holders > 0 and holders + 1 or 0) then
    recount()
  end
  used = tonumber(redis.call('HGET', HOLDS, 'used')) or 0
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', string.format('%.0f', now_ms))) do
    leave(id, permits_of(redis.call('HGET', HOLDS, id)))
  end
  limit = tonumber(fence[2])
  if limit and now_ms >= lapse and redis.call('EXISTS', HOLDERS, QUEUE) == 0 then
    limit = nil
  end
  free = limit and limit - used or 0
end

-- The semaphore is in use: its limit stays in force for a lease after this one, and what the fence tells for a day.
local function touch(lease_ms)
  lapse = math.max(lapse, now_ms + 2 * lease_ms)
  redis.call('HSET', FENCE, 'lapse', string.format('%.0f', lapse))
  redis.call('PEXPIRE', FENCE, FENCE_MS)
end

-- A server that is out of memory refuses to write, but not to a script that has written already. Giving back and renewing
-- need no memory, and must not be refused.
local function write_first()
  redis.call('PEXPIRE', FENCE, FENCE_MS)
end

local function put_in_force(permits, lease_ms)
  if not limit then
    -- Grows as tokens do, so that a later reign is known from an earlier one.
    reign = string.format('%.0f', math.max((tonumber(reign) or 0) + 1, now))
  end
  limit = permits
  free = limit - used
  redis.call('HSET', FENCE, 'limit', string.format('%.0f', limit), 'reign', reign)
  touch(lease_ms)
end

local function extend(id, lease_ms)
  redis.call('ZADD', HOLDERS, string.format('%.0f', now_ms + lease_ms), id)
  keep(HOLDERS, lease_ms)
  keep(HOLDS, lease_ms)
  touch(lease_ms)
end

admit = function(id, request, token)
  redis.call('HSET', HOLDS, id, string.format('%.0f %.0f', request.permits, token))
  used = redis.call('HINCRBY', HOLDS, 'used', string.format('%.0f', request.permits))
  free = limit - used
  last = token
  redis.call('HSET', FENCE, 'token', string.format('%.0f', token))
  extend(id, request.lease_ms)
end

