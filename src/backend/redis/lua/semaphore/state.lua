-- What every operation on a semaphore has to know, as one text: to read and to write it costs one command.
--
-- state  string, in MessagePack: the limit; its version, when it came into force; its lapse, until when, in ms, it stays in force if
--        nobody holds or waits; how many permits are used; before when, in ms, no holder's lease ends; until when, in ms, holders and
--        holds are kept; until when, in ms, queue and waiters are; when, in ms, the state expires; the last ticket. The version is a
--        text of digits, all else are numbers. What is not known is false. Expires with the limit: one to two leases after nobody
--        holds or waits.

-- What the text tells, nil for what is not known. Something else under the key tells nothing.
local function read_state(text)
  local intact, limit, version, lapse, used, ends, kept, queue_kept, expires, ticket = pcall(cmsgpack.unpack, text or '')
  if intact and type(ticket) == 'number' and type(version) ~= 'number' then
    return limit or nil, version or nil, lapse, used or nil, ends or nil, kept or nil, queue_kept or nil, expires, ticket
  end
  return nil, nil, 0, nil, nil, nil, nil, 0, 0
end

-- A semaphore as its state tells; keys as in semaphore.lua.
local function semaphore_at(keys, kind, fence, clock)
  local limit, version, lapse, used, ends, kept, queue_kept, expires, ticket = read_state(redis.call('GET', keys[4]))
  return {
    key = keys[1], queue = keys[2], waiters = keys[3], state = keys[4], holds = keys[5], fence = fence, clock = clock,
    kind = kind, by_size = kind == 'counting',
    limit = limit, version = version, lapse = lapse, used = used, ends = ends, kept = kept, queue_kept = queue_kept,
    expires = expires, last_ticket = ticket,
    -- Whether the state is to be written.
    changed = false,
  }
end

-- Writes the state, with `call` or `pcall`. Its expiry is set only if it would come too early: that costs as much as the rest.
local function set_state(s, call)
  s.changed = false
  local now = s.clock.ms
  local last = math.max(s.lapse, s.kept or 0, s.queue_kept or 0, now + 1)
  local keeps = s.expires > now and s.expires >= last
  if not keeps then
    s.expires = last
  end
  local text = cmsgpack.pack(
    s.limit or false, s.version or false, s.lapse, s.used or false, s.ends or false, s.kept or false,
    s.queue_kept or false, s.expires, s.last_ticket)
  if keeps then
    return call('SET', s.state, text, 'KEEPTTL')
  end
  return call('SET', s.state, text, 'PXAT', millis(last))
end

local function write_state(s)
  set_state(s, redis.call)
end

-- Writes the state if it has changed. If it may not be written, all is to be counted anew.
local function close_state(s)
  if s.changed and set_state(s, redis.pcall).err then
    redis.pcall('DEL', s.state)
  end
end

