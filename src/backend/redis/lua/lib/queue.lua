-- The queue of those who wait, for locks and for semaphores.
--
-- queue    sorted set: places, "<ticket, 16 digits> <lease id>". Scored by 1, for a counting semaphore by the number of permits
--          wanted; those of one score are in order of arrival, since equal scores are ordered by their text. Places of waiters
--          that nobody listens for are unreachable: scored by minus the time, in ms, until which they count as alive.
-- waiters  hash: lease id -> "ticket lease_ms alive_until_ms permits[ owner]", for each place;
--          and "/<owner>" -> the lease ids of those who wait for that owner, each followed by a space
--
-- A ticket is the time of arrival in microseconds, or one more than the last ticket. No place has the ticket of another: the
-- answer "queued" and the grant both name it, so that a grant of an earlier place that was held back on its way is not believed.
--
-- A hand-over sets a waiter that cannot be reached aside, so that no other comes across it again; when its client is heard from
-- again, it gets back its place.
--
-- `r` is what is waited for, made by lock.lua or semaphore.lua:
--   key, queue, waiters   keys
--   fence, clock          as in token.lua and time.lua
--   free, limit           how many permits are free, and how many there can be at most
--   by_size               whether small requests may pass large ones
--   terms                 what a waiter has to know about the kind of its grant, for messages
--   last_ticket           of a semaphore, whose places are not in the order of their tickets
--   admit                 function(r, id, request): makes a waiter a holder

-- The waiter with this lease id; nil if it is not in the queue.
local function waiter(r, id)
  local record = call('HGET', r.waiters, id)
  local ticket, lease_ms, alive_until, permits, owner =
    match(record or '', '^(%d+) (%d+) (%d+) (%d+) ?(.*)$')
  if not ticket then return nil end
  return {
    ticket = ticket, lease_ms = tonumber(lease_ms), alive_until = tonumber(alive_until), permits = tonumber(permits),
    owner = owner ~= '' and owner or nil,
  }
end

-- The lease ids of those who wait for `owner`, each followed by a space.
local function waiting_for(r, owner)
  return call('HGET', r.waiters, '/' .. owner) or ''
end

-- Takes `id` out of the queue; nil if it is not in it. Whoever knows what it asked for says so.
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

local function next_ticket(r)
  local last = r.last_ticket
  if not last then
    local newest = call('ZREVRANGE', r.queue, 0, 0)[1]
    last = tonumber(sub(newest or '', 1, 16)) or 0
  end
  return last < r.clock.us and r.clock.text or string.format('%016.0f', last + 1)
end

-- Two keys that are written together expire when those who use them have been silent for a lease or two. Returns in how many ms.
local function keep(key, other, lease_ms)
  local left = call('PTTL', key)
  if left < lease_ms * 1.5 then
    left = lease_ms * 2
    call('PEXPIRE', key, left)
    call('PEXPIRE', other, left)
  end
  return left
end

-- Removes places of those that have died, so that they do not pile up even if no hand-over comes across them: up to a hundred, as
-- one arrival in fifty at least comes by here, and each adds one at most.
local function prune(r)
  local dead = {}
  if r.by_size then
    -- Adds the places of those that have died among so many at random. Created here, because every function costs time, used or not.
    local function look_among(count)
      local places, ids = call('ZRANDMEMBER', r.queue, count), {}
      for i, place in ipairs(places) do
        ids[i] = sub(place, 18)
      end
      for i, record in ipairs(call('HMGET', r.waiters, unpack(ids))) do
        local alive_until = match(record or '', '^%d+ %d+ (%d+) ')
        if (tonumber(alive_until) or 0) <= r.clock.ms then table.insert(dead, places[i]) end
      end
    end
    -- Hand-overs may pass over one that asked for much. So the dead are looked for at random: first among a few places, which
    -- tells whether it is worth looking at a hundred, which takes longer than all else. So at most about half of the places
    -- belong to the dead.
    look_among(8)
    if dead[1] then look_among(100) end
  else
    dead = call('ZRANGEBYSCORE', r.queue, '(-' .. millis(r.clock.ms), '(0', 'LIMIT', 0, 100)
  end
  for _, place in ipairs(dead) do
    remove(r, sub(place, 18))
    call('ZREM', r.queue, place)
  end
end

-- Gives `id` a place in the queue, or lets it keep the one it has; alive for another lease. Returns its ticket; if the place is
-- new, how many come before it, unreachable ones included; and for how many ms the queue is kept.
local function join_queue(r, id, lease_ms, permits, owner)
  local before = waiter(r, id)
  local ticket = before and before.ticket or next_ticket(r)
  local place = ticket .. ' ' .. id
  if before and tonumber(call('ZSCORE', r.queue, place) or -1) < 0 then
    -- A client that could not be reached for a while is heard again: all its waiters get back the places they had on arrival.
    -- Done once per such time, by the first of them that asks.
    local client = match(id, '^[^.]+%.')
    local records = call('HGETALL', r.waiters)
    for i = 1, #records, 2 do
      if sub(records[i], 1, #client) == client then
        local its_ticket, its_permits = match(records[i + 1], '^(%d+) %d+ %d+ (%d+)')
        call('ZADD', r.queue, r.by_size and its_permits or '1', its_ticket .. ' ' .. records[i])
      end
    end
  end
  local record = table.concat({ ticket, lease_ms, millis(r.clock.ms + lease_ms), permits, owner }, ' ')
  -- First: if something else is stored there, no record is left. The waiters have been read already.
  call('ZADD', r.queue, r.by_size and permits or '1', place)
  if owner and not before then call('HSET', r.waiters, '/' .. owner, waiting_for(r, owner) .. id .. ' ') end
  call('HSET', r.waiters, id, record)
  local others = not before and call('ZCARD', r.queue) - 1
  if others == INDEXED_AT then
    -- Redis keeps up to 128 entries of a sorted set or a hash in a list and walks it, as long as none has more than 64 bytes. In
    -- a queue of some length that takes longer than the rest of a script, so it is given an index, which it keeps.
    local long = string.rep(' ', 65)
    call('ZADD', r.queue, '0', long)
    call('ZREM', r.queue, long)
    call('HSET', r.waiters, long, '')
    call('HDEL', r.waiters, long)
  end
  local left = keep(r.queue, r.waiters, lease_ms)
  prune(r)
  return ticket, others, left
end

-- The place to be served next: the first in the queue, or the first among those that fit.
local function next_place(r)
  if not r.by_size then return call('ZRANGEBYSCORE', r.queue, '1', '+inf', 'LIMIT', '0', '1')[1] end
  local first, size = nil, 0
  while size < r.free do
    local found = call('ZRANGEBYSCORE', r.queue, '(' .. size, r.free, 'WITHSCORES', 'LIMIT', '0', '1')
    if not found[1] then return first end
    if not first or found[1] < first then first = found[1] end
    size = tonumber(found[2])
  end
  return first
end

-- Hands what is free to those next in the queue that are alive and can be told; `asker`, if it is one of them, is being answered
-- anyway. Returns the token of `asker` if it is served. A waiter on the way is removed if it is dead, or if it asks for more
-- than anybody can have, and set aside if it cannot be reached. So each waiter is looked at three times at most, however many
-- there are.
local function hand_over(r, asker)
  local silent, answer = {}, nil
  while r.free > 0 do
    local place = next_place(r)
    if not place then return answer end
    local id = sub(place, 18)
    local request = waiter(r, id)
    if not request or request.alive_until <= r.clock.ms or request.permits > r.limit then
      remove(r, id, request)
      call('ZREM', r.queue, place)
      if request and request.permits > r.limit then
        -- It will be told why when it asks.
        tell(id, ASK .. ' ' .. id .. ' ' .. r.key)
      end
    elseif request.permits > r.free and (id == asker or listens(id)) then
      -- Whoever comes behind it waits with it.
      return answer
    else
      local client = sub(id, 1, 36)
      local reached = id == asker
      if not reached and request.permits <= r.free and not silent[client] then
        request.token = next_token(r.fence, r.clock)
        local terms = request.owner and 'reentrant' or r.terms
        reached = tell(id, grant_message(id, request.token, request.ticket, terms, r.fence, r.key))
      end
      if reached then
        remove(r, id, request)
        request.token = request.token or next_token(r.fence, r.clock)
        if id == asker then
          answer = request.token
        else
          -- It ends when the place would have ended: whoever waits there counts it from its last request.
          request.lease_ms = request.alive_until - r.clock.ms
        end
        r.admit(r, id, request)
      else
        silent[client] = true
        call('ZADD', r.queue, '-' .. millis(request.alive_until), place)
      end
    end
  end
  return answer
end

