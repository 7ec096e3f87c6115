-- Ends one lease wherever it is, or reduces it, and hands the permits over to those waiters that now fit.
--
-- ARGV[1]  'counting' or 'fair'
-- ARGV[2]  lease id
-- ARGV[3]  how many permits the lease keeps, '0' to end it
--
-- Returns  RELEASED if a hold has ended or returned what it should, LEFT_QUEUE if a place in the queue was given up,
--          NOT_HELD if there was neither
--
-- Idempotent: never gives a lease more than it has, and finds nothing once it has ended.

local function release_permits(s, id, kept)
  kept = tonumber(kept)
  local answer = NOT_HELD
  local held = expire_leases(s, id)
  if held then
    local surplus = permits_of(held) - kept
    if kept == 0 then
      end_hold(s, id, surplus)
    elseif surplus > 0 then
      begin_writing(s)
      call('HSET', s.holds, id, kept .. ' ' .. match(held, '%d+$'))
      use(s, s.used - surplus)
    end
    answer = RELEASED
  elseif kept == 0 and remove(s, id) then
    answer = LEFT_QUEUE
  end
  -- If the state was lost, the limit is unknown until a request states it.
  if s.limit then hand_over_permits(s) end
  return answer
end

-- The fast path: a whole hold ends while no lease has expired, and either nobody waits, or one permit becomes free and
-- goes to the first in the queue, which wants one. Returns nothing, and changes nothing, in other cases.

-- The permit of `id` goes to the waiter at `place`. Also returns the grant, if it is the caller's own and may be sent
-- with the answer.
local function hand_over_permits_fast(s, id, place, used)
  if not s.version or not s.kept then return end
  s.grant_terms = s.grant_terms or terms_of(s.kind .. '/' .. s.limit .. '/' .. s.version, s.fence, s.key)
  local asker = s.grants_with_answers and sub(id, 1, 36)
  local next, token, ends, message, ttl_ms =
    grant_fast(place, s.queue, s.waiters, s.grant_terms, (s.kept - s.clock.ms) / 1.5, s.clock, next_permit_token, s, asker)
  if not next then return end
  s.waiting = s.waiting and s.waiting - 1
  -- Before the other one is removed, since removing the last one would remove the key and its expiry.
  call('HSET', s.holds, next, '1 ' .. token)
  call('ZADD', s.key, ends, next)
  call('HDEL', s.holds, id)
  s.used, s.ends, s.changed = used + 1, math.min(s.ends, ends), true
  s.lapse = math.max(s.lapse, ends + math.min(ttl_ms, ends - s.clock.ms))
  local found = call('ZREM', s.key, id)
  if found == 0 then
    -- The holders were deleted by hand: they have just been created again.
    s.kept = s.clock.ms + keep(s.key, s.holds, ends - s.clock.ms)
  end
  return found, message
end

local function release_permits_fast(s, id, kept)
  local known = kept == '0' and s.limit and s.used and s.ends and s.ends > s.clock.ms
  local held = known and call('HGET', s.holds, id)
  if not held then return end
  local used = s.used - (sub(held, 1, 2) == '1 ' and 1 or match(held, '^%d+'))
  local free = s.limit - used
  local place = free == 1 and call('ZRANGEBYSCORE', s.queue, '1', '1', 'LIMIT', '0', '1')[1]
  if place then return hand_over_permits_fast(s, id, place, used) end
  -- A waiter for more permits stays in the queue. If the lease is no longer a holder, the key was changed by hand, and
  -- everything must be counted again.
  if (free <= 1 or (s.queue_kept or 0) < s.clock.ms or call('EXISTS', s.queue) == 0) and call('ZREM', s.key, id) == 1 then
    call('HDEL', s.holds, id)
    s.used, s.changed = used, true
    return RELEASED
  end
end
