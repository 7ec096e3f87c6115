-- The fast path of release.lua: a whole hold ends, while no lease has run out, and nobody waits, or one permit becomes free and
-- goes to the first in the queue, who wants one. Answers nothing, and has changed nothing, if the case is another.

-- The permit of `id` goes to the waiter at `place`. Returns as well what is to be told with the answer: the grant of the
-- caller's own request, if so it may be told.
local function hand_over_fast(s, id, place, used)
  local next = sub(place, 18)
  -- "ticket lease_ms alive_until_ms permits", the first with 16 digits, the third with 13.
  local record = call('HGET', s.waiters, next) or ''
  local lease_ms, ends = tonumber(sub(record, 18, -17)), sub(record, -15, -3)
  -- Times of as many digits compare as texts do, and the first 13 of microseconds are milliseconds.
  if not s.version or not lease_ms or sub(record, -2) ~= ' 1'
    or ends <= sub(s.clock.text, 1, 13)
    or not (s.kept and s.kept - s.clock.ms >= lease_ms * 1.5)
  then
    return
  end
  local client = sub(next, 1, 36)
  s.terms = s.terms or s.kind .. '/' .. s.limit .. '/' .. s.version
  local ticket = sub(place, 1, 16)
  local token = next_token(s.fence, s.clock)
  local message = grant_message(next, token, ticket, s.terms, s.fence, s.key)
  local with_answer = s.grants_with_answers and sub(id, 1, 36) == client
  if not with_answer and call('PUBLISH', CHANNEL_PREFIX .. client, message) == 0 then return end
  call('HDEL', s.waiters, next)
  call('ZREM', s.queue, place)
  s.waiting = s.waiting and s.waiting - 1
  -- Before the other goes, since with the last one goes the key and its expiry.
  call('HSET', s.holds, next, '1 ' .. token)
  -- It ends when the place would have ended: whoever waits there counts it from its last request.
  call('ZADD', s.key, ends, next)
  call('HDEL', s.holds, id)
  s.used, s.ends, s.changed = used + 1, math.min(s.ends, ends), true
  s.lapse = math.max(s.lapse, ends * 2 - s.clock.ms)
  local found = call('ZREM', s.key, id)
  if found == 0 then
    -- Somebody has deleted the holders: they have just been made anew.
    call('PEXPIRE', s.key, lease_ms * 2)
    s.kept = math.min(s.kept, s.clock.ms + lease_ms * 2)
  end
  return found, with_answer and message
end

-- Parameters as in release.lua.
local function release_permits_fast(s, id, kept)
  local known = kept == '0' and s.limit and s.used and s.ends and s.ends > s.clock.ms
  local held = known and call('HGET', s.holds, id)
  if not held then return end
  local used = s.used - (sub(held, 1, 2) == '1 ' and 1 or match(held, '^%d+'))
  local free = s.limit - used
  local place = free == 1 and call('ZRANGEBYSCORE', s.queue, '1', '1', 'LIMIT', '0', '1')[1]
  if place then return hand_over_fast(s, id, place, used) end
  -- Whoever waits for more stays in the queue. If it is no holder any more, somebody has changed the key, and all is to be
  -- counted anew.
  if (free <= 1 or call('EXISTS', s.queue) == 0) and call('ZREM', s.key, id) == 1 then
    call('HDEL', s.holds, id)
    s.used, s.changed = used, true
    return RELEASED
  end
end
