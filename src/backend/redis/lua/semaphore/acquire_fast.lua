-- The fast path of acquire.lua: for a semaphore whose limit the client knows, while no lease has expired. A request
-- gets its permits if nobody waits, and a place in the queue if there are too few. Returns nothing, and changes
-- nothing, in other cases. If it fails because a key was changed by hand, the slow path handles that.
--
-- The state is read once per call and written once, no matter how many operations of the call are for the semaphore.
-- Fields that are added once known: waiting, the number of places in the queue; ttl_ms and end_of_lease, when a lease
-- of this many ms would end; grant_terms, what the message of a grant contains; and, if batch.lua says so,
-- grants_with_answers.

local function join_queue_fast(s, id, ttl_text, permits)
  local ttl_ms, number, ticket = tonumber(ttl_text), s.clock.us, s.clock.text
  if s.last_ticket >= number then
    number = s.last_ticket + 1
    ticket = micros(number)
  end
  local before = s.waiting or call('ZCARD', s.queue)
  -- One in fifty takes the slow path, which prunes, and so does the one that makes the queue long enough for an index.
  if number % PRUNE_EVERY == 0 or before == INDEXED_AT or call('HEXISTS', s.holds, id) == 1 then return end
  if s.ttl_ms ~= ttl_ms then s.ttl_ms, s.end_of_lease = ttl_ms, millis(s.clock.ms + ttl_ms) end
  local record = ticket .. ' ' .. ttl_text .. ' ' .. s.end_of_lease .. ' ' .. permits
  if call('HSETNX', s.waiters, id, record) == 0 then return end
  call('ZADD', s.queue, s.by_size and permits or '1', ticket .. ' ' .. id)
  if before == 0 or not s.queue_kept or s.queue_kept - s.clock.ms < ttl_ms * 1.5 then
    s.queue_kept = s.clock.ms + keep(s.queue, s.waiters, ttl_ms)
  end
  s.last_ticket, s.waiting, s.changed = number, before + 1, true
  return { QUEUED, s.limit, s.version, s.ends - s.clock.ms, before, ticket }
end

-- Parameters as in acquire.lua.
local function acquire_permits_fast(s, id, ttl_text, waits, permits, _, known)
  local now_ms, used, ends, kept, ttl_ms = s.clock.ms, s.used, s.ends, s.kept, tonumber(ttl_text)
  if used == 0 then ends, kept = now_ms + ttl_ms, now_ms + ttl_ms * 2 end
  local known_and_in_force = s.limit and used and s.version == known and now_ms < s.lapse
  if not (known_and_in_force and ends and ends > now_ms and kept and kept - now_ms >= ttl_ms * 1.5) then return end
  if used + permits > s.limit then
    return waits == '1' and s.limit - permits >= 0 and join_queue_fast(s, id, ttl_text, permits)
  end
  -- Nobody waits, and there are holders if and only if permits are in use. The queue takes precedence over those two.
  if call('EXISTS', s.key, s.holds, s.queue, s.queue, s.queue) ~= (used > 0 and 2 or 0) then return end
  local token = next_permit_token(s, s.clock)
  -- If it already holds permits, this token is not used.
  if call('HSETNX', s.holds, id, permits .. ' ' .. token) == 0 then return end
  call('ZADD', s.key, millis(now_ms + ttl_ms), id)
  if used == 0 then
    call('PEXPIRE', s.key, ttl_ms * 2)
    call('PEXPIRE', s.holds, ttl_ms * 2)
    s.kept = kept
  end
  s.used, s.ends, s.changed = used + permits, math.min(ends, now_ms + ttl_ms), true
  s.lapse = math.max(s.lapse, now_ms + ttl_ms * 2)
  return { GRANTED, s.limit, known, token }
end

