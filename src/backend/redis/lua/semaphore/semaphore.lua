-- A semaphore: what its scripts share, after line.lua.
--
-- KEYS[1]  holders  sorted set: lease ids by the time their leases end, in ms
-- KEYS[4]  fence    string: see fence.lua
-- KEYS[5]  holds    hash: lease id -> "permits token". Has the same leases as the holders.
-- ARGV[1]  'counting' or 'fair'
--
-- All times are the server's. Holders and holds go with the last lease, and by themselves if nobody is heard of.

look_at_clock()
local HOLDERS, HOLDS = KEYS[1], KEYS[5]
local reign, lapse, used, ends, kept, line_kept, last, ticket
limit, reign, lapse, used, ends, kept, line_kept, last, ticket = unpack_fence(redis.call('GET', FENCE))

local function tell_fence()
  redis.call('SET', FENCE, pack_fence(limit, reign, lapse, used, ends, kept, line_kept, last, ticket), 'KEEPTTL')
end

kind, by_size = ARGV[1], ARGV[1] == 'counting'

last_token = function()
  return last
end

last_ticket = function()
  return ticket
end

remember_line = function(next, left)
  ticket, line_kept = tonumber(next or ticket), now_ms + left
  tell_fence()
end

kind_of = function()
  return kind .. '/' .. limit .. '/' .. (reign or '0')
end

local function permits_of(record)
  return tonumber(string.match(record, '^%d+'))
end

-- What the fence tells is remembered for a day. Needs no memory: a server that has none left refuses to write, but not to a
-- script that has written already. Giving back and renewing must not be refused.
local function remember_fence()
  redis.call('PEXPIRE', FENCE, FENCE_MS)
end

-- How many permits are held is told with everything that changes it.
local function use(permits)
  used = permits
  free = limit and limit - used or 0
  tell_fence()
end

-- Somebody from outside has changed one of the keys: what is in both holders and holds counts.
local function recount()
  local permits = 0
  local records = redis.call('HGETALL', HOLDS)
  for i = 1, #records, 2 do
    if redis.call('ZSCORE', HOLDERS, records[i]) then
      permits = permits + permits_of(records[i + 1])
    else
      redis.call('HDEL', HOLDS, records[i])
    end
  end
  for _, id in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    if redis.call('HEXISTS', HOLDS, id) == 0 then
      redis.call('ZREM', HOLDERS, id)
    end
  end
  -- Before, since it needs no memory, and after, since the fence may be new.
  remember_fence()
  use(permits)
  remember_fence()
end

-- Ends the hold of `id`, which has `permits`.
local function leave(id, permits)
  redis.call('HDEL', HOLDS, id)
  redis.call('ZREM', HOLDERS, id)
  use(used - permits)
end

-- Ends the leases whose time is over; each is met once. Returns the record of `id`, if it holds permits.
local function settle(id)
  local holders = redis.call('ZCARD', HOLDERS)
  if redis.call('HLEN', HOLDS) ~= holders or (holders == 0) ~= ((used or 0) == 0) then
    recount()
  end
  used = used or 0
  local first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  while first[1] and tonumber(first[2]) <= now_ms do
    leave(first[1], permits_of(redis.call('HGET', HOLDS, first[1])))
    first = redis.call('ZRANGE', HOLDERS, 0, 0, 'WITHSCORES')
  end
  local ends_before = ends
  ends = tonumber(first[2])
  if ends and (not ends_before or ends_before > ends or ends_before <= now_ms) then
    remember_fence()
    tell_fence()
  end
  if limit and now_ms >= lapse and redis.call('EXISTS', HOLDERS, QUEUE) == 0 then
    limit = nil
  end
  free = limit and limit - used or 0
  return id and redis.call('HGET', HOLDS, id)
end

-- The semaphore is in use: its limit stays in force for a lease after this one, the keys of its holders live on, and what the
-- fence tells is remembered for a day.
local function touch(lease_ms)
  lapse = math.max(lapse, now_ms + lease_ms * 2)
  kept = now_ms + keep(HOLDERS, HOLDS, lease_ms)
  tell_fence()
  remember_fence()
end

local function put_in_force(permits, lease_ms)
  if not limit or not reign then
    -- Grows as tokens do, so that a later reign is known from an earlier one.
    local before = tonumber(reign) or 0
    reign = before < now and now_text or string.format('%.0f', before + 1)
  end
  limit = permits
  -- First: a store that is full must refuse it.
  use(used)
  touch(lease_ms)
end

-- When the lease of `id` ends.
local function set_end(id, lease_ms)
  redis.call('ZADD', HOLDERS, in_full(now_ms + lease_ms), id)
  ends = math.min(ends or now_ms + lease_ms, now_ms + lease_ms)
end

-- The lease begins anew.
local function extend(id, lease_ms)
  remember_fence()
  set_end(id, lease_ms)
  touch(lease_ms)
end

admit = function(id, request, token)
  last = tonumber(token)
  redis.call('HSET', HOLDS, id, request.permits .. ' ' .. token)
  set_end(id, request.lease_ms)
  use(used + request.permits)
  touch(request.lease_ms)
end

