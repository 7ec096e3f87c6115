-- What every operation on a semaphore has to know, as one text: to read and to write it costs one command.
--
-- state  string, in MessagePack: the limit; its version, when it came into force; its lapse, until when, in ms, it stays in force if
--        nobody holds or waits; how many permits are used; before when, in ms, no holder's lease ends; until when, in ms, holders and
--        holds are kept; until when, in ms, queue and waiters are; when, in ms, the state expires; the last ticket; the last token.
--        The version is a text of digits, all else are numbers. What is not known is false. Expires after the limit has
--        lapsed: two to four leases after nobody holds or waits.

-- A semaphore as its state tells, with nil for what is not known; keys as in semaphore.lua. Something else under the key of the state
-- tells nothing.
local function semaphore_at(key, queue, kind, fence, clock)
  local stem = string.sub(queue, 1, -6)
  local state = stem .. 'state'
  local intact, limit, version, lapse, used, ends, kept, queue_kept, expires, ticket, token =
    pcall(cmsgpack.unpack, redis.call('GET', state) or '')
  if not intact or type(token) ~= 'number' or type(version) == 'number' then
    limit, version, lapse, used, ends, kept, queue_kept, expires, ticket, token = nil, nil, 0, nil, nil, nil, nil, 0, 0, 0
  end
  return {
    key = key, queue = queue, waiters = stem .. 'waiters', state = state, holds = stem .. 'holds', fence = fence, clock = clock,
    kind = kind, by_size = kind == 'counting',
    limit = limit or nil, version = version or nil, lapse = lapse, used = used or nil, ends = ends or nil, kept = kept or nil,
    queue_kept = queue_kept or nil,
    expires = expires, last_ticket = ticket, last_token = token,
    -- Whether the state is to be written.
    changed = false,
  }
end

-- A new token, as text: of a semaphore that is in use by what its state tells, which saves the fence. Such tokens are ahead of the
-- clock by 100 ms at most, which has passed when the state expires.
local function issue_permit_token(s)
  local token, now = s.last_token + TOKENS_PER_GRANT, s.clock.us
  local text
  if s.last_token == 0 or token - now > 1e5 then
    raise_fence(s.fence, s.last_token)
    text = next_token(s.fence, s.clock)
    token = s.fence.token
  elseif token <= now then
    token, text = now, s.clock.text
  else
    text = micros(token)
  end
  s.last_token = token
  return text
end

-- Writes the state, with `call` or `pcall`. Its expiry is set only if it would come too early: that costs as much as the rest.
local function set_state(s, call)
  s.changed = false
  local now = s.clock.ms
  local last = math.max(s.lapse, s.kept or 0, s.queue_kept or 0, now + 1)
  local keeps = s.expires > now and s.expires >= last
  if not keeps then
    s.expires = last + (last - now)
    if s.last_token > (s.fence.token or 0) then
      -- The fence outlives the state. Nobody gets this token.
      raise_fence(s.fence, s.last_token)
      next_token(s.fence, s.clock)
    end
  end
  local text = cmsgpack.pack(
    s.limit or false, s.version or false, s.lapse, s.used or false, s.ends or false, s.kept or false,
    s.queue_kept or false, s.expires, s.last_ticket, s.last_token)
  if keeps then
    return call('SET', s.state, text, 'KEEPTTL')
  end
  return call('SET', s.state, text, 'PXAT', millis(s.expires))
end

-- Writes the state if it has changed. If it may not be written, all is to be counted anew.
local function close_state(s)
  if s.changed and set_state(s, redis.pcall).err then
    redis.pcall('DEL', s.state)
  end
end

-- A lease begins, with so many permits in use from now on.
local function begin_lease(s, lease_ms, used)
  s.used, s.changed = used, true
  s.ends, s.lapse = math.min(s.ends, s.clock.ms + lease_ms), math.max(s.lapse, s.clock.ms + lease_ms * 2)
end

