-- Requests permits, for the first time or again.
--
-- KEYS     as in semaphore.lua
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
-- The number of places is used only to stagger repeated requests: it includes unreachable waiters and, for a counting
-- semaphore, all that request fewer permits.
--
-- Idempotent per lease id, like the request for a lock. Every request also serves the queue, so that the permits of a
-- dead holder go to the next waiter.

local function acquire_permits(s, id, ttl_ms, waits, permits, stated, known)
  ttl_ms, permits, stated = tonumber(ttl_ms), tonumber(permits), tonumber(stated)
  -- The permits of a dead holder go to the next waiter, whatever the answer is. A server that is out of memory may
  -- refuse that.
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

