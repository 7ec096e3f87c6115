-- The line of those who wait: what locks and semaphores have in common.
--
-- KEYS[1]  the lock or the semaphore itself; its name goes with every message
-- KEYS[2]  queue    sorted set: places in line, "<ticket, 16 digits> <lease id>". Scored by 1, for a counting semaphore by
--                   the number of permits wanted; those of one score stand in order of arrival, since equal scores are
--                   ordered by their text. Places for which nobody listens are parked: scored by minus the time, in ms,
--                   until which they count as alive.
-- KEYS[3]  waiters  hash: lease id -> "ticket lease_ms alive_until_ms permits[ owner]", for each place in line;
--                   and "/<owner>" -> the lease ids of those who wait for that owner, each followed by a space
-- KEYS[4]  fence    the last token, and more for a semaphore: see lock.lua and semaphore.lua. Expires after a day without
--                   grant or renewal, or somewhat earlier.
--
-- A ticket is the time of arrival in microseconds, or one more than the last ticket. No place has the ticket of another: the
-- answer "queued" and the grant both name it, so that a grant of an earlier place that was held back on its way is not believed.
--
-- A hand-over parks a waiter that nobody listens for, so that no other meets it again; when its client is heard again, it gets
-- back its place.
--
-- Tokens and tickets stay below 2^53, where Lua's numbers are exact; '%.0f' writes all their digits. It takes longer than
-- most commands, and so does every number as an argument: what is text already stays text.

local QUEUE, WAITERS, FENCE = KEYS[2], KEYS[3], KEYS[4]
local FENCE_MS = '86400000'
-- So often can a lease change hands within a client, each time under the next token.
local TOKENS_PER_GRANT = 16

-- What the line is for, filled in by whoever serves it: how many permits are free and how many there can be at most;
-- whether small requests may pass large ones; how the last token is found; how a waiter becomes a holder.
local kind, by_size = 'mutex', false
local free, limit = 0, 1
local last_token, admit

-- What a waiter has to know about the kind of its grant, for messages.
local function kind_of(request)
  return request.owner and 'reentrant' or kind
end

-- The time in microseconds, as text too, and in milliseconds, since the script has looked at the clock.
local now, now_text, now_ms

local function look_at_clock()
  if now then
    return
  end
  local time = redis.call('TIME')
  now_text = time[1] .. string.sub('00000' .. time[2], -6)
  now = tonumber(now_text)
  now_ms = math.floor(now / 1000)
end

-- A time in milliseconds as text.
local function in_full(ms)
  return string.format('%d%03d', ms / 1000, ms % 1000)
end

-- Above all tokens of the last grant, or the time, whichever is greater: grows while the store remembers, whatever the
-- clock does, and grows when the store has forgotten, because time has passed. What is no token is not counted.
local function next_token()
  local last = last_token()
  local next = last + TOKENS_PER_GRANT
  return last < 2 ^ 53 and next > now and string.format('%.0f', next) or now_text
end

-- The channel of the client that made lease `id`, or nil: a lease id is <client>.<sequence>.
local function channel(id)
  local client = string.match(id, '^(%x+%-%x+%-%x+%-%x+%-%x+)%.%d+$')
  return client and 'leasehold:' .. client
end

-- Tells the client that made lease `id`; false if nobody there listens.
local function tell(id, message)
  local to = channel(id)
  return to ~= nil and redis.call('PUBLISH', to, message .. ' ' .. KEYS[1]) > 0
end

local function listens(id)
  local to = channel(id)
  return to ~= nil and redis.call('PUBSUB', 'NUMSUB', to)[2] > 0
end

local function waiter(id)
  local record = redis.call('HGET', WAITERS, id)
  local ticket, lease_ms, alive_until, permits, owner =
    string.match(record or '', '^(%d+) (%d+) (%d+) (%d+) ?(.*)$')
  if not ticket then
    return nil
  end
  return {
    ticket = ticket,
    lease_ms = tonumber(lease_ms),
    alive_until = tonumber(alive_until),
    permits = tonumber(permits),
    owner = owner ~= '' and owner or nil,
  }
end

-- The lease ids of those who wait for `owner`, each followed by a space.
local function waiting_for(owner)
  return redis.call('HGET', WAITERS, '/' .. owner) or ''
end

-- Takes `id` out of the line; nil if it does not stand there. Whoever knows what it asked for says so.
local function forget(id, request)
  request = request or waiter(id)
  if not request then
    return nil
  end
  redis.call('HDEL', WAITERS, id)
  redis.call('ZREM', QUEUE, request.ticket .. ' ' .. id)
  if request.owner then
    local ids, field = waiting_for(request.owner), '/' .. request.owner
    local from, to = string.find(ids, id .. ' ', 1, true)
    local others = from and string.sub(ids, 1, from - 1) .. string.sub(ids, to + 1) or ids
    if others == '' then
      redis.call('HDEL', WAITERS, field)
    else
      redis.call('HSET', WAITERS, field, others)
    end
  end
  return request
end

local function score(permits)
  return by_size and permits or '1'
end

-- The last ticket given. A semaphore, whose places are not in the order of their tickets, remembers it.
local last_ticket = function()
  local last = redis.call('ZREVRANGE', QUEUE, 0, 0)[1]
  return tonumber(string.sub(last or '', 1, 16)) or 0
end
-- What a semaphore remembers of its line: the ticket, if it is a new one, and for how many ms the keys are kept.
local remember_line = function() end

local function next_ticket()
  local last = last_ticket()
  return last < now and now_text or string.format('%016.0f', last + 1)
end

-- A client that could not be told for a while is heard again: all its waiters get back the places they had on
-- arrival. Done once per such time, by the first of them that asks.
local function take_places_back(id)
  local client = string.match(id, '^[^.]+%.')
  local records = redis.call('HGETALL', WAITERS)
  for i = 1, #records, 2 do
    if string.sub(records[i], 1, #client) == client then
      local ticket, permits = string.match(records[i + 1], '^(%d+) %d+ %d+ (%d+)')
      redis.call('ZADD', QUEUE, score(tonumber(permits)), ticket .. ' ' .. records[i])
    end
  end
end

-- Two keys that are written together go by themselves when those who use them have been silent for a lease or two. Returns
-- in how many ms.
local function keep(key, other, lease_ms)
  local left = redis.call('PTTL', key)
  if left < lease_ms * 1.5 then
    left = lease_ms * 2
    redis.call('PEXPIRE', key, left)
    redis.call('PEXPIRE', other, left)
  end
  return left
end

-- The places of those that have died among so many at random.
local function dead_among(count)
  local places, ids, dead = redis.call('ZRANDMEMBER', QUEUE, count), {}, {}
  for i, place in ipairs(places) do
    ids[i] = string.sub(place, 18)
  end
  for i, record in ipairs(redis.call('HMGET', WAITERS, unpack(ids))) do
    local alive_until = string.match(record or '', '^%d+ %d+ (%d+) ')
    if (tonumber(alive_until) or 0) <= now_ms then
      table.insert(dead, places[i])
    end
  end
  return dead
end

-- Forgets places of those that have died, so that they do not pile up however few are ever met again: up to a hundred, since
-- one arrival in fifty at least comes by here, and each adds one at most.
local function tidy()
  local dead
  if by_size then
    -- One that asked for much may not be met even if it is not parked. So they are looked for at random: among a hundred takes
    -- longer than all else, and among a few tells whether that is worth it. So even if everybody dies in line, about half of the
    -- places are dead ones' at most.
    dead = dead_among(8)
    for _, place in ipairs(dead[1] and dead_among(100) or {}) do
      table.insert(dead, place)
    end
  else
    dead = redis.call('ZRANGEBYSCORE', QUEUE, '(-' .. in_full(now_ms), '(0', 'LIMIT', 0, 100)
  end
  for _, place in ipairs(dead) do
    forget(string.sub(place, 18))
    redis.call('ZREM', QUEUE, place)
  end
end

-- Redis keeps up to 128 entries of a sorted set or a hash in a list and walks it, as long as none has more than 64 bytes. In a
-- line of some length that takes longer than the rest of a script, so it is given an index, which it keeps.
local INDEXED = 32
local function index_line()
  local long = string.rep(' ', 65)
  redis.call('ZADD', QUEUE, '0', long)
  redis.call('ZREM', QUEUE, long)
  redis.call('HSET', WAITERS, long, '')
  redis.call('HDEL', WAITERS, long)
end

-- Gives `id` a place in line, or lets it keep the one it has; alive for another lease. Returns its ticket, and if the place
-- is new, how many there are besides, parked ones included.
local function stand_in_line(id, lease_ms, permits, owner)
  local before = waiter(id)
  local ticket = before and before.ticket or next_ticket()
  local place = ticket .. ' ' .. id
  if before and tonumber(redis.call('ZSCORE', QUEUE, place) or -1) < 0 then
    take_places_back(id)
  end
  local record = table.concat({ ticket, lease_ms, in_full(now_ms + lease_ms), permits, owner }, ' ')
  -- First: should something else stand there, no record is left. The waiters have been read already.
  redis.call('ZADD', QUEUE, score(permits), place)
  if owner and not before then
    redis.call('HSET', WAITERS, '/' .. owner, waiting_for(owner) .. id .. ' ')
  end
  redis.call('HSET', WAITERS, id, record)
  local others = not before and redis.call('ZCARD', QUEUE) - 1
  if others == INDEXED then
    index_line()
  end
  remember_line(not before and ticket, keep(QUEUE, WAITERS, lease_ms))
  tidy()
  return ticket, others
end

-- How many places come before that of `id`, parked ones included: for a new one all the others.
local function places_before(ticket, id, others)
  return others or redis.call('ZRANK', QUEUE, ticket .. ' ' .. id) or 0
end

-- The place to be served next: the first in line, or the first among those that fit.
local function next_in_line()
  if not by_size then
    return redis.call('ZRANGEBYSCORE', QUEUE, '1', '+inf', 'LIMIT', '0', '1')[1]
  end
  local first, size = nil, 0
  while size < free do
    local found = redis.call('ZRANGEBYSCORE', QUEUE, '(' .. size, free, 'WITHSCORES', 'LIMIT', '0', '1')
    if not found[1] then
      return first
    end
    if not first or found[1] < first then
      first = found[1]
    end
    size = tonumber(found[2])
  end
  return first
end

-- Gives what is free to those next in line that are alive and can be told; `asker`, if it is one of them, is being
-- answered anyway. Returns the token of `asker` if it is served. Every waiter met on the way is forgotten if it is dead,
-- or if it asks for more than anybody can have, and parked if it is silent. So each waiter is met at most three times,
-- however many there are.
local function serve(asker)
  local silent, answer = {}, nil
  while free > 0 do
    local place = next_in_line()
    if not place then
      return answer
    end
    local id = string.sub(place, 18)
    local request = waiter(id)
    if not request or request.alive_until <= now_ms or request.permits > limit then
      forget(id, request)
      redis.call('ZREM', QUEUE, place)
      if request and request.permits > limit then
        -- It will be told why when it asks.
        tell(id, 'ask ' .. id)
      end
    elseif request.permits > free and (id == asker or listens(id)) then
      -- Whoever comes behind it waits with it.
      return answer
    else
      local client = string.sub(id, 1, 36)
      local token = next_token()
      local grant = 'grant ' .. id .. ' ' .. token .. ' ' .. request.ticket .. ' ' .. kind_of(request)
      if id == asker or (request.permits <= free and not silent[client] and tell(id, grant)) then
        forget(id, request)
        if id == asker then
          answer = token
        else
          -- It ends when the place would have ended: whoever waits there counts it from its last request.
          request.lease_ms = request.alive_until - now_ms
        end
        admit(id, request, token)
      else
        silent[client] = true
        redis.call('ZADD', QUEUE, '-' .. in_full(request.alive_until), place)
      end
    end
  end
  return answer
end

