-- A semaphore: what its scripts share, after line.lua.
--
-- KEYS[1]  holders  sorted set: lease ids by the time their leases end, in ms
-- KEYS[4]  fence    hash: "token" and "ticket", the last ones; "limit", the number of permits; "reign", when that came into
--                   force; "lapse", until when, in ms, it stays in force if nobody holds or waits
-- KEYS[5]  holds    hash: lease id -> "permits token", and "used", their sum. Has the same leases as the holders.
-- ARGV[1]  'counting' or 'fair'
--
-- All times are the server's. Holders and holds go with the last lease, and by themselves if nobody is heard of.

look_at_clock()
local HOLDERS, HOLDS = KEYS[1], KEYS[5]
local fence = redis.call('HMGET', FENCE, 'token', 'limit', 'reign', 'lapse', 'ticket')
local last, reign, lapse = tonumber(fence[1]) or 0, fence[3], tonumber(fence[4]) or 0
-- How many permits are in use, once settled; and whether the server still has another sum.
local used, unsaved = 0, false
-- When the first lease of a holder ends.
local ends

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
  return kind .. '/' .. limit .. '/' .. reign
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

-- Ends the hold of `id`, which has `permits`. To be saved.
local function leave(id, permits)
  redis.call('HDEL', HOLDS, id)
  redis.call('ZREM', HOLDERS, id)
  used, unsaved = used - permits, true
end

-- Tells the server how many permits are in use. Whoever is admitted does so too.
local function save()
  if unsaved and used > 0 then
    redis.call('HSET', HOLDS, 'used', used)
  elseif unsaved then
    redis.call('DEL', HOLDS)
  end
  unsaved = false
end

-- Ends the leases whose time is over; each is met once. Returns the record of `id`, if it holds permits.
local function settle(id)
  local holders = redis.call('ZCARD', HOLDERS)
  if redis.call('HLEN', HOLDS) ~= (holders > 0 and holders + 1 or 0) then
    recount()
  end
  local held = redis.call('HMGET', HOLDS, 'used', id or '')
  used = tonumber(held[1]) or 0
  local first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  while first[1] and tonumber(first[2]) <= now_ms do
    leave(first[1], permits_of(redis.call('HGET', HOLDS, first[1])))
    held[2] = first[1] ~= id and held[2]
    first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  end
  save()
  ends = tonumber(first[2])
  limit = tonumber(fence[2])
  if limit and now_ms >= lapse and redis.call('EXISTS', HOLDERS, QUEUE) == 0 then
    limit = nil
  end
  free = limit and limit - used or 0
  return held[2]
end

-- What the fence tells is remembered for a day. Needs no memory: a server that has none left refuses to write, but not to a
-- script that has written already. Giving back and renewing must not be refused.
local function remember_fence()
  redis.call('PEXPIRE', FENCE, FENCE_MS)
end

-- The semaphore is in use: its limit stays in force for a lease after this one. The rest goes into the fence as well.
local function touch(lease_ms, ...)
  lapse = math.max(lapse, now_ms + 2 * lease_ms)
  redis.call('HSET', FENCE, 'lapse', in_full(lapse), ...)
end

local function put_in_force(permits, lease_ms)
  if not limit then
    -- Grows as tokens do, so that a later reign is known from an earlier one.
    local before = tonumber(reign) or 0
    reign = before < now and now_text or string.format('%.0f', before + 1)
  end
  limit = permits
  free = limit - used
  touch(lease_ms, 'limit', limit, 'reign', reign)
  remember_fence()
end

local function set_end(id, lease_ms)
  ends = math.min(ends or now_ms + lease_ms, now_ms + lease_ms)
  redis.call('ZADD', HOLDERS, in_full(now_ms + lease_ms), id)
  keep(HOLDERS, HOLDS, lease_ms)
end

-- The lease begins anew.
local function extend(id, lease_ms)
  remember_fence()
  set_end(id, lease_ms)
  touch(lease_ms)
end

admit = function(id, request, token)
  local gap = now - last
  used, last = used + request.permits, tonumber(token)
  free, unsaved = limit - used, false
  redis.call('HSET', HOLDS, id, request.permits .. ' ' .. token, 'used', used)
  set_end(id, request.lease_ms)
  touch(request.lease_ms, 'token', token)
  if gap > now % 1e8 or gap < TOKENS_PER_GRANT then
    -- The first grant within these 100 seconds, or the clock was set back.
    remember_fence()
  end
end

