-- How a request joins the queue (queue.lua).

local function next_ticket(r)
  local last = r.last_ticket
  if not last then
    local newest = call('ZREVRANGE', r.queue, 0, 0)[1]
    last = tonumber(sub(newest or '', 1, 16)) or 0
  end
  return last < r.clock.us and r.clock.text or string.format('%016.0f', last + 1)
end

-- Removes places of dead waiters that no hand-over finds: up to a hundred, since one arrival in fifty gets here.
local function prune(r)
  local dead = {}
  if r.by_size then
    -- Adds the places of dead waiters among this many at random.
    local function look_among(count)
      local places, ids = call('ZRANDMEMBER', r.queue, count), {}
      -- They expire at once if the clock is set back at this moment.
      if not places[1] then return end
      for i, place in ipairs(places) do
        ids[i] = sub(place, 18)
      end
      for i, record in ipairs(call('HMGET', r.waiters, unpack(ids))) do
        local alive_until = match(record or '', '^%d+ %d+ (%d+) ')
        if (tonumber(alive_until) or 0) <= r.clock.ms then table.insert(dead, places[i]) end
      end
    end
    -- Hand-overs may skip a waiter for many permits, so the dead are searched for at random: a few places show whether
    -- to check a hundred, which takes longer than everything else. So at most about half belong to the dead.
    look_among(8)
    if dead[1] then look_among(100) end
  else
    dead = call('ZRANGEBYSCORE', r.queue, '(-' .. millis(r.clock.ms), '(0', 'LIMIT', '0', '100')
  end
  for _, place in ipairs(dead) do
    remove(r, sub(place, 18))
    call('ZREM', r.queue, place)
  end
end

-- Gives `id` a place in the queue, or lets it keep the one it has; alive for another TTL. Returns its ticket; if the
-- place is new, how many come before it, unreachable ones included; and for how many ms the queue is kept.
local function join_queue(r, id, ttl_ms, permits, owner)
  local before = waiter(r, id)
  local ticket = before and before.ticket or next_ticket(r)
  local place = ticket .. ' ' .. id
  if before and tonumber(call('ZSCORE', r.queue, place) or -1) < 0 then
    -- A client that could not be reached for a while is heard from again: all its waiters get back the places they had
    -- on arrival. Done once per such period, by the first of them that repeats its request.
    local client = match(id, '^[^.]+%.')
    local records = call('HGETALL', r.waiters)
    for i = 1, #records, 2 do
      if sub(records[i], 1, #client) == client then
        local its_ticket, its_permits = match(records[i + 1], '^(%d+) %d+ %d+ (%d+)')
        call('ZADD', r.queue, r.by_size and its_permits or '1', its_ticket .. ' ' .. records[i])
      end
    end
  end
  local record = table.concat({ ticket, ttl_ms, millis(r.clock.ms + ttl_ms), permits, owner }, ' ')
  -- First: if something else is stored there, no record is left. The waiters have been read already.
  call('ZADD', r.queue, r.by_size and permits or '1', place)
  if owner and not before then call('HSET', r.waiters, '/' .. owner, waiting_for(r, owner) .. id .. ' ') end
  call('HSET', r.waiters, id, record)
  local others = not before and call('ZCARD', r.queue) - 1
  if others == INDEXED_AT then
    -- Redis scans a sorted set or a hash of up to 128 entries, as long as none has more than 64 bytes. In a long queue
    -- that takes longer than the rest of a script, so the queue is given an index, which it keeps.
    local long = string.rep(' ', 65)
    call('ZADD', r.queue, '0', long)
    call('ZREM', r.queue, long)
    call('HSET', r.waiters, long, '')
    call('HDEL', r.waiters, long)
  end
  local left = keep(r.queue, r.waiters, ttl_ms)
  prune(r)
  return ticket, others, left
end
