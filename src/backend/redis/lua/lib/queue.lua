-- The queue of waiters, for locks and for semaphores.
--
-- queue    sorted set: places, "<ticket, 16 digits> <lease id>". Scored by 1, for a counting semaphore by the permits
--          wanted; equal scores are ordered by text, so by arrival. Places of unreachable waiters are scored by minus
--          the time, in ms, until which they count as alive. A lock may have a gap (lock/gap.lua).
-- waiters  hash: lease id -> "ticket ttl_ms alive_until_ms permits[ owner]", for each place;
--          and "/<owner>" -> the lease ids that wait for that owner, each followed by a space
--
-- A ticket is the time of arrival in microseconds, or one more than the last ticket. No place ever has that of another:
-- the answer "queued" and the grant both contain it, so that a delayed grant of an earlier place is not accepted.
--
-- `r` is the resource, created by lock.lua or semaphore.lua:
--   key, queue, waiters   keys
--   fence, clock          as in fence.lua and time.lua
--   free, limit           how many permits are free, and how many there can be at most
--   by_size               whether small requests may overtake large ones
--   message_kind          the kind, as in messages (grant.lua)
--   last_ticket           of a semaphore, whose places are not in the order of their tickets
--   next_token            function(r, clock): a new token, as text
--   admit                 function(r, id, request): makes a waiter a holder

-- The waiter with this lease id; nil if it is not in the queue.
local function waiter(r, id)
  local record = call('HGET', r.waiters, id)
  local ticket, ttl_ms, alive_until, permits, owner =
    match(record or '', '^(%d+) (%d+) (%d+) (%d+) ?(.*)$')
  if not ticket then return nil end
  return {
    ticket = ticket, ttl_ms = tonumber(ttl_ms), alive_until = tonumber(alive_until), permits = tonumber(permits),
    owner = owner ~= '' and owner or nil,
  }
end

-- The lease ids that wait for `owner`, each followed by a space.
local function waiting_for(r, owner) return call('HGET', r.waiters, '/' .. owner) or '' end

-- Removes `id` from the queue and returns its record; nil if it is not queued. A caller that has the record passes it.
local function remove(r, id, request)
  request = request or waiter(r, id)
  if not request then return nil end
  call('HDEL', r.waiters, id)
  call('ZREM', r.queue, request.ticket .. ' ' .. id)
  if request.owner then
    local ids, field = waiting_for(r, request.owner), '/' .. request.owner
    local from, to = string.find(ids, id .. ' ', 1, true)
    local others = from and sub(ids, 1, from - 1) .. sub(ids, to + 1) or ids
    if others == '' then
      call('HDEL', r.waiters, field)
    else
      call('HSET', r.waiters, field, others)
    end
  end
  return request
end

-- Two keys that are written together expire when their users have been silent for a TTL or two. Returns in how many ms.
local function keep(key, other, ttl_ms)
  local left = call('PTTL', key)
  if left < ttl_ms * 1.5 then
    left = ttl_ms * 2
    local text = string.format('%.0f', left)
    call('PEXPIRE', key, text)
    call('PEXPIRE', other, text)
  end
  return left
end
