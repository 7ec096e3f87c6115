-- The short ways of acquire.lua and release.lua: for a semaphore whose limit the client knows, while no lease has run out. The
-- same answers. They stand by themselves, since what other scripts share costs time on every call.
--
-- A request gets its permits if nobody waits, and a place in line if there are too few. A release ends a whole hold, if nobody
-- waits, or if one permit becomes free and goes to the first in line, who wants one. In every other case, a way answers nothing
-- and has changed nothing. If it fails, because somebody has changed a key by hand, the long way sees to that.
--
-- What the fence tells (fence.lua) is read once per call and written once, however many operations of the call are for the
-- semaphore.

local function in_full(ms)
  return string.format('%d%03d', ms / 1000, ms % 1000)
end

local function digits(us)
  return string.format('%d%06d', us / 1e6, us % 1e6)
end

-- What is known of a semaphore at a time as in clock.lua, with its keys as in line.lua and semaphore.lua. To the fields come, once
-- they are known: waiting, how many places there are in line; lease_ms and end_of_lease, when a lease of so many ms would end;
-- terms, what a waiter is told of the kind of its grant; and, if batch.lua says so, grants_with_answers.
local function look(now, now_us, now_ms, holders, queue, waiters, fence, holds)
  local limit, reign, lapse, used, ends, kept, line_kept, token, ticket = unpack_fence(redis.call('GET', fence))
  return {
    holders = holders, queue = queue, waiters = waiters, fence = fence, holds = holds,
    now = now, now_us = now_us, now_ms = now_ms,
    limit = limit, reign = reign, lapse = lapse, used = used, ends = ends, kept = kept, line_kept = line_kept,
    token = token, ticket = ticket,
    -- Whether the fence is to be told.
    changed = false,
  }
end

-- Tells the fence what has changed. If it may not be told, all is to be counted anew.
local function note(s)
  if s.changed then
    local text = pack_fence(s.limit, s.reign, s.lapse, s.used, s.ends, s.kept, s.line_kept, s.token, s.ticket)
    if redis.pcall('SET', s.fence, text, 'KEEPTTL').err then
      redis.pcall('DEL', s.fence)
    end
  end
end

-- As with the token of a lock: above all tokens of the last grant (TOKENS_PER_GRANT in line.lua). The first grant within 100
-- seconds goes the long way, which keeps the fence for another day. Returns its text as well.
local function next_token(s)
  local gap = s.now_us - s.token
  if gap >= 16 then
    return gap <= s.now_us % 1e8 and s.now_us, s.now
  end
  local next = s.token + 16
  return gap > -1e6 and next, digits(next)
end

local function end_of_lease(s, lease_ms)
  if s.lease_ms ~= lease_ms then
    s.lease_ms, s.end_of_lease = lease_ms, in_full(s.now_ms + lease_ms)
  end
  return s.end_of_lease
end

-- A lease begins, with so many permits in use from now on.
local function grant(s, lease_ms, token, used)
  s.token, s.used, s.changed = token, used, true
  s.ends, s.lapse = math.min(s.ends, s.now_ms + lease_ms), math.max(s.lapse, s.now_ms + lease_ms * 2)
end

local function stand_in_line(s, kind, id, lease_text, permits)
  local lease_ms, number, ticket = tonumber(lease_text), s.now_us, s.now
  if s.ticket >= number then
    number = s.ticket + 1
    ticket = digits(number)
  end
  local before = s.waiting or redis.call('ZCARD', s.queue)
  -- One in fifty goes the long way, which tidies up, and whoever makes the line a long one (INDEXED in line.lua), for its index.
  if number % 50 == 0 or before == 32 or redis.call('HEXISTS', s.holds, id) == 1 then
    return
  end
  local record = ticket .. ' ' .. lease_text .. ' ' .. end_of_lease(s, lease_ms) .. ' ' .. permits
  if redis.call('HSETNX', s.waiters, id, record) == 0 then
    return
  end
  redis.call('ZADD', s.queue, kind == 'counting' and permits or '1', ticket .. ' ' .. id)
  if before == 0 or not s.line_kept or s.line_kept - s.now_ms < lease_ms * 1.5 then
    local left = redis.call('PTTL', s.queue)
    if left < lease_ms * 1.5 then
      left = lease_ms * 2
      redis.call('PEXPIRE', s.queue, left)
      redis.call('PEXPIRE', s.waiters, left)
    end
    s.line_kept = s.now_ms + left
  end
  s.ticket, s.waiting, s.changed = number, before + 1, true
  return { 'queued', s.limit, s.reign, s.ends - s.now_ms, before, ticket }
end

-- Parameters as in acquire.lua.
local function acquire_permits(s, kind, id, lease_text, waits, permits, _, known)
  local now_ms, used, ends, kept, lease_ms = s.now_ms, s.used, s.ends, s.kept, tonumber(lease_text)
  if used == 0 then
    ends, kept = now_ms + lease_ms, now_ms + lease_ms * 2
  end
  if not (s.limit and used and s.reign == known and now_ms < s.lapse and ends and ends > now_ms)
    or not (kept and kept - now_ms >= lease_ms * 1.5)
  then
    return
  end
  if used + permits > s.limit then
    return waits == '1' and s.limit - permits >= 0 and stand_in_line(s, kind, id, lease_text, permits)
  end
  local number, token = next_token(s)
  -- Nobody waits, and there are holders if permits are in use, and only then. The queue counts for more than those two.
  if not number or redis.call('EXISTS', s.holders, s.holds, s.queue, s.queue, s.queue) ~= (used > 0 and 2 or 0) then
    return
  end
  if redis.call('HSETNX', s.holds, id, permits .. ' ' .. token) == 0 then
    return
  end
  redis.call('ZADD', s.holders, end_of_lease(s, lease_ms), id)
  if used == 0 then
    redis.call('PEXPIRE', s.holders, lease_ms * 2)
    redis.call('PEXPIRE', s.holds, lease_ms * 2)
    s.ends, s.kept = ends, kept
  end
  grant(s, lease_ms, number, used + permits)
  return { 'granted', s.limit, known, token }
end

-- The permit of `id` goes to whoever stands at `place`. Returns as well what is to be told with the answer: the grant of the
-- caller's own request, if so it may be told.
local function hand_over(s, kind, id, place, used)
  local next = string.sub(place, 18)
  -- "ticket lease_ms alive_until_ms permits", the first with 16 digits, the third with 13.
  local record = redis.call('HGET', s.waiters, next) or ''
  local lease_ms, number, token = tonumber(string.sub(record, 18, -17)), next_token(s)
  -- Times of as many digits compare as texts do, and the first 13 of microseconds are milliseconds.
  if not number or not s.reign or not lease_ms or string.sub(record, -2) ~= ' 1'
    or string.sub(record, -15, -3) <= string.sub(s.now, 1, 13)
    or not (s.kept and s.kept - s.now_ms >= lease_ms * 1.5)
  then
    return
  end
  local client = string.sub(next, 1, 36)
  s.terms = s.terms or kind .. '/' .. s.limit .. '/' .. s.reign
  local ticket = string.sub(place, 1, 16)
  local message = 'grant ' .. next .. ' ' .. token .. ' ' .. ticket .. ' ' .. s.terms .. ' ' .. s.holders
  local with_answer = s.grants_with_answers and string.sub(id, 1, 36) == client
  if not with_answer and redis.call('PUBLISH', 'leasehold:' .. client, message) == 0 then
    return
  end
  redis.call('HDEL', s.waiters, next)
  redis.call('ZREM', s.queue, place)
  s.waiting = s.waiting and s.waiting - 1
  -- Before the other goes, since with the last one goes the key and its expiry.
  redis.call('HSET', s.holds, next, '1 ' .. token)
  -- It ends when the place would have ended: whoever waits there counts it from its last request.
  local ends = string.sub(record, -15, -3)
  redis.call('ZADD', s.holders, ends, next)
  redis.call('HDEL', s.holds, id)
  grant(s, tonumber(ends) - s.now_ms, number, used + 1)
  local found = redis.call('ZREM', s.holders, id)
  if found == 0 then
    -- Somebody has deleted the holders: they have just been made anew.
    redis.call('PEXPIRE', s.holders, lease_ms * 2)
    s.kept = math.min(s.kept, s.now_ms + lease_ms * 2)
  end
  return found, with_answer and message
end

-- Parameters as in release.lua.
local function release_permits(s, kind, id, kept)
  local known = kept == '0' and s.limit and s.used and s.ends and s.ends > s.now_ms
  local held = known and redis.call('HGET', s.holds, id)
  if not held then
    return
  end
  local used = s.used - (string.sub(held, 1, 2) == '1 ' and 1 or string.match(held, '^%d+'))
  local free = s.limit - used
  local place = free == 1 and redis.call('ZRANGEBYSCORE', s.queue, '1', '1', 'LIMIT', '0', '1')[1]
  if place then
    return hand_over(s, kind, id, place, used)
  end
  -- Whoever waits for more stays where he is. If it is no holder any more, somebody has changed the key, and all is to be
  -- counted anew.
  if (free <= 1 or redis.call('EXISTS', s.queue) == 0) and redis.call('ZREM', s.holders, id) == 1 then
    redis.call('HDEL', s.holds, id)
    s.used, s.changed = used, true
    return 1
  end
end
