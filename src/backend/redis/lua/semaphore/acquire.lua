-- Requests permits, for the first time or again.
--
-- ARGV[1]  'counting' or 'fair'
-- ARGV[2]  lease id
-- ARGV[3]  TTL, in ms
-- ARGV[4]  '1' to wait if there are not enough permits, '0' not to
-- ARGV[5]  how many permits
-- ARGV[6]  the limit that the request states
-- ARGV[7]  the version of that limit, '0' if it knows none
--
-- Returns  {GRANTED, limit, version, token}
--          {GRANTED, limit, version, token, ms until the lease ends} if it was granted before
--          {QUEUED, limit, version, ms until the next lease of a holder ends or -1, places before this one, ticket}
--          {NONE_FREE, limit, version} if there are too few and this request does not wait
--          {LIMIT_DIFFERS, limit} if another limit is in force
--          {ABOVE_LIMIT, limit} if the request exceeds the limit
--
-- The places include those of unreachable waiters and, for a counting semaphore, all requests for fewer permits: they
-- only stagger repeated requests. Idempotent per lease id. Every request also serves the queue, so that the permits of
-- a dead holder go to the next waiter.

local function acquire_permits(s, id, ttl_ms, waits, permits, stated, known)
  ttl_ms, permits, stated = tonumber(ttl_ms), tonumber(permits), tonumber(stated)
  -- Whatever the answer is, the queue is served. A server that is out of memory may refuse that.
  local held = expire_leases(s, id)
  if held then
    -- Granted before, and the answer was lost, no matter how the limit has changed since.
    local left = call('ZSCORE', s.key, id) - s.clock.ms
    pcall(hand_over_permits, s)
    return { GRANTED, s.limit or stated, s.version or '0', match(held, '%d+$'), left }
  end
  local differs = s.limit and s.version ~= known and stated ~= s.limit and not waiter(s, id)
  if differs or permits > (s.limit or stated) then
    pcall(hand_over_permits, s)
    return { differs and LIMIT_DIFFERS or ABOVE_LIMIT, s.limit or stated }
  end
  if not s.limit or not s.version then put_in_force(s, s.limit or stated, ttl_ms) end

  local queued = call('EXISTS', s.queue) == 1
  if waits == '1' and (queued or permits > s.free) then
    local ticket, others, left = join_queue(s, id, ttl_ms, permits)
    if others then s.last_ticket = tonumber(ticket) end
    s.queue_kept = s.clock.ms + left
    write_state(s)
    local token = hand_over_permits(s, id)
    if token then return { GRANTED, s.limit, s.version, token } end
    local remaining = s.ends and s.ends - s.clock.ms or -1
    return { QUEUED, s.limit, s.version, remaining, others or call('ZRANK', s.queue, ticket .. ' ' .. id) or 0, ticket }
  end
  if queued then hand_over_permits(s) end
  -- No waiter in the queue fits. Where overtaking is not allowed, the queue must be empty.
  if permits > s.free or (queued and not s.by_size and call('ZCOUNT', s.queue, 1, '+inf') > 0) then
    return { NONE_FREE, s.limit, s.version }
  end
  local token = next_permit_token(s, s.clock)
  hold_permits(s, id, { ttl_ms = ttl_ms, permits = permits, token = token })
  return { GRANTED, s.limit, s.version, token }
end

-- The fast path: for a semaphore whose limit the client knows, while no lease has expired. A request gets its permits
-- if nobody waits, and a place in the queue if there are too few. Returns nothing, and changes nothing, in other cases;
-- if it fails because a key was changed by hand, the slow path handles that. Fields that are added once known: waiting,
-- the number of places in the queue; ttl_ms and end_of_lease, when a lease of this many ms would end; grant_terms, what
-- the message of a grant contains; and, if batch.lua says so, grants_with_answers.

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
