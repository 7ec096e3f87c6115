-- Handing over what is free to those in the queue (queue.lua). A waiter that cannot be reached is set aside, so that no
-- other hand-over has to look at it again; when its client is heard from again, it gets its place back.

-- The place to serve next: the first in the queue, or the first among those that fit.
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

-- Hands over what is free to the next waiters in the queue that are alive and reachable; `asker`, if it is one of them,
-- is being answered anyway. Returns the token of `asker` if it is served. In a gap (gap.lua), the first of them is
-- asked to repeat its request instead, and learns from the answer when the gap ends. Others on the way are removed if
-- they are dead or request too much, and set aside if they cannot be reached: each is looked at three times at most.
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
        -- It learns why when it repeats its request.
        tell(id, ASK .. ' ' .. id .. ' ' .. r.key)
      end
    elseif request.permits > r.free and (id == asker or listens(id)) then
      -- Those behind it wait as well.
      return answer
    else
      local client = sub(id, 1, 36)
      local reached = id == asker
      if r.in_gap and not silent[client] then
        if tell(id, ASK .. ' ' .. id .. ' ' .. r.key) then return nil end
      elseif not reached and request.permits <= r.free and not silent[client] then
        request.token = r.next_token(r, r.clock)
        local terms = terms_of(request.owner and 'reentrant' or r.message_kind, r.fence, r.key)
        reached = tell(id, grant_message(id, request.token, request.ticket, terms))
      end
      if reached then
        remove(r, id, request)
        request.token = request.token or r.next_token(r, r.clock)
        if id == asker then
          answer = request.token
        else
          -- It ends when the place would have ended: the waiter measures it from its last request.
          local left_ms = request.alive_until - r.clock.ms
          request.kept_ms, request.ttl_ms = math.min(request.ttl_ms, left_ms), left_ms
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
