-- What every operation on a semaphore must know, as one text: reading or writing it costs one command.
--
-- state  string, in MessagePack: the limit; its version, a text of digits, when it came into force; its lapse, until
--        when it stays in force without holders or waiters; how many permits are in use; the time before which no
--        holder's lease ends; until when holders and holds are kept; until when queue and waiters are kept; when the
--        state expires; the last token; up to which token the fence covers (token.lua); the last ticket; for lists,
--        whether small requests may overtake. All times are in ms. Unknown values are nil or false. Expires two to four
--        TTLs after the last use.

-- A semaphore according to its state; keys as in semaphore.lua. Anything else under the key of the state is ignored.
local function semaphore_at(key, queue, kind, fence, clock)
  local stem = sub(queue, 1, -6)
  local state = stem .. 'state'
  local intact, limit, version, lapse, used, ends, kept, queue_kept, expires, token, covered, ticket =
    pcall(cmsgpack.unpack, call('GET', state) or '')
  if not intact or type(ticket) ~= 'number' or type(version) == 'number' then
    limit, version, lapse, used, ends, kept, queue_kept, expires, token, covered, ticket =
      nil, nil, 0, nil, nil, nil, nil, 0, nil, nil, 0
  end
  return {
    key = key, queue = queue, waiters = stem .. 'waiters', state = state, holds = stem .. 'holds', fence = fence, clock = clock,
    kind = kind, by_size = kind == 'counting',
    limit = limit, version = version, lapse = lapse, used = used, ends = ends, kept = kept, queue_kept = queue_kept,
    expires = expires, token = token, covered = covered, last_ticket = ticket, next_token = next_permit_token,
    -- Whether the state must be written.
    changed = false,
  }
end

-- Its expiry is set only if it would come too early: that costs as much as the rest. So it is set later than necessary, by as long
-- as the state is needed from now on; or from its last grant, if the clock was set back since: by how far must not matter.
local function write_state(s, with)
  local now, last, kept, queue_kept, write = s.clock.ms, s.lapse, s.kept, s.queue_kept, with or call
  if kept and kept > last then last = kept end
  if queue_kept and queue_kept > last then last = queue_kept end
  local keeps = s.expires > now and s.expires >= last
  if not keeps then
    last = math.max(last, now + 1)
    s.expires = last + math.max(0, last - math.max(now, (s.token or 0) / 1000))
  end
  s.changed = false
  local text =
    cmsgpack.pack(s.limit, s.version, s.lapse, s.used, s.ends, s.kept, s.queue_kept, s.expires, s.token, s.covered, s.last_ticket, s.by_size)
  if keeps then return write('SET', s.state, text, 'KEEPTTL') end
  return write('SET', s.state, text, 'PXAT', millis(s.expires))
end

-- Writes the state if it has changed. If it may not be written, everything must be counted again.
local function close_state(s)
  if s.changed and write_state(s, redis.pcall).err then redis.pcall('DEL', s.state) end
end
