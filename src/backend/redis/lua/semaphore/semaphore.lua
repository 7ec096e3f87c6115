-- A semaphore: code shared by its operations.
--
-- holders  sorted set, the semaphore's own key: lease ids, scored by the time at which their leases end, in ms
-- waiters  see queue.lua
-- state    see state.lua
-- holds    hash: lease id -> "permits token". Has the same leases as the holders.
--
-- All times are the server's. Holders and holds are removed with the last lease, or expire if all clients are silent.

local function permits_of(record) return tonumber(match(record, '^%d+')) end

-- Needs no memory, and does nothing: a server that is out of memory refuses writes, except those of a script that has
-- already written. Releases and renewals must not be refused.
local function begin_writing(s) call('ZREM', s.key, '') end

-- The number of permits held is written with every change.
local function use(s, permits)
  s.used = permits
  s.free = s.limit and s.limit - permits or 0
  write_state(s)
end

-- One of the keys was changed from outside: only what is in both holders and holds counts.
local function recount(s)
  local permits = 0
  local records = call('HGETALL', s.holds)
  begin_writing(s)
  for i = 1, #records, 2 do
    if call('ZSCORE', s.key, records[i]) then
      permits = permits + permits_of(records[i + 1])
    else
      call('HDEL', s.holds, records[i])
    end
  end
  for _, id in ipairs(call('ZRANGE', s.key, 0, -1)) do
    if call('HEXISTS', s.holds, id) == 0 then call('ZREM', s.key, id) end
  end
  use(s, permits)
end

-- Ends the hold of `id`, which has `permits`.
local function end_hold(s, id, permits)
  call('HDEL', s.holds, id)
  call('ZREM', s.key, id)
  use(s, s.used - permits)
end

-- Whether the limit has lapsed: its time is over, and there are no holders or waiters but ended leases and the dead.
local function has_lapsed(s)
  local now = s.clock.ms
  return now >= s.lapse and call('ZCOUNT', s.key, '(' .. millis(now), '+inf') == 0 and not living(s.waiters, now)[1]
end

-- Ends expired leases; each is looked at once. Returns the record of `id`, if it holds permits.
local function expire_leases(s, id)
  local holders = call('ZCARD', s.key)
  if call('HLEN', s.holds) ~= holders or (holders == 0) ~= ((s.used or 0) == 0) then recount(s) end
  s.used = s.used or 0
  local first = call('ZRANGE', s.key, 0, 0, 'WITHSCORES')
  while first[1] and tonumber(first[2]) <= s.clock.ms do
    end_hold(s, first[1], permits_of(call('HGET', s.holds, first[1])))
    first = call('ZRANGE', s.key, 0, 0, 'WITHSCORES')
  end
  local ends_before = s.ends
  s.ends = tonumber(first[2])
  if s.ends and (not ends_before or ends_before > s.ends or ends_before <= s.clock.ms) then
    begin_writing(s)
    write_state(s)
  end
  if s.limit and has_lapsed(s) then s.limit = nil end
  s.free = s.limit and s.limit - s.used or 0
  return id and call('HGET', s.holds, id)
end

-- The semaphore is in use: its limit stays in force for a TTL after this lease, and the keys of its holders are kept.
local function touch(s, ttl_ms)
  s.lapse = math.max(s.lapse, s.clock.ms + ttl_ms * 2)
  s.kept = s.clock.ms + keep(s.key, s.holds, ttl_ms)
  write_state(s)
end

local function put_in_force(s, limit, ttl_ms)
  if not s.limit or not s.version then
    -- Increases like tokens, so that a later version can be told from an earlier one.
    local before = tonumber(s.version) or 0
    s.version = before < s.clock.us and s.clock.text or string.format('%.0f', before + 1)
  end
  s.limit = limit
  -- First: a full store must refuse it.
  use(s, s.used)
  touch(s, ttl_ms)
end

-- When the lease of `id` ends.
local function set_end(s, id, ttl_ms)
  call('ZADD', s.key, millis(s.clock.ms + ttl_ms), id)
  s.ends = math.min(s.ends or s.clock.ms + ttl_ms, s.clock.ms + ttl_ms)
end

-- Makes a request a holder.
local function hold_permits(s, id, request)
  call('HSET', s.holds, id, request.permits .. ' ' .. request.token)
  set_end(s, id, request.ttl_ms)
  use(s, s.used + request.permits)
  -- A lease lasts longer than its TTL if the clock was set back since the request: by how far must not matter.
  touch(s, request.kept_ms or request.ttl_ms)
end

-- Hands over what is free to those waiters that now fit (queue.lua).
local function hand_over_permits(s, asker)
  s.message_kind = s.kind .. '/' .. s.limit .. '/' .. (s.version or '0')
  s.admit = hold_permits
  return hand_over(s, asker)
end
