-- The keys of one lock and the steps that acquire.lua and release.lua share.
--
-- KEYS[1]  lock     string: the holder's lease id. Expires with the lease. The canonical recipe, nothing else.
-- KEYS[2]  queue    sorted set: waiting lease ids, scored by ticket. Those for which nobody listens are parked: scored
--                   by minus the time until which they count as alive.
-- KEYS[3]  waiters  hash: lease id -> "ticket lease_ms alive_until_ms". Has the same members as the queue.
-- KEYS[4]  fence    string: the last token. Expires after a day without grant or renewal, or up to 100 s earlier.
--
-- A ticket is the time of arrival in microseconds, or one more than the last ticket. A hand-over parks a waiter that
-- nobody listens for, so that no other meets it again; when its client is heard again, its ticket becomes its score
-- again. So a ticket must not be given twice, also not while the one who has it is parked.
--
-- Tokens and tickets stay below 2^53, where Lua's numbers are exact; '%.0f' writes all their digits.

local LOCK, QUEUE, WAITERS, FENCE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local FENCE_MS = '86400000'

local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- One above the last token, or the time, whichever is greater: grows while the store remembers, whatever the
-- clock does, and grows when the store has forgotten, because time has passed. What is no token is not counted.
local function next_token(now)
  local last = tonumber(redis.call('GET', FENCE)) or 0
  return (last >= now and last < 2 ^ 53) and last + 1 or now
end

local function grant(id, lease_ms, token)
  redis.call('SET', FENCE, string.format('%.0f', token), 'PX', FENCE_MS)
  redis.call('SET', LOCK, id, 'PX', lease_ms)
  return token
end

-- Tells the client that made lease `id`; false if nobody there listens. A lease id is <client>.<sequence>, and
-- the client names the channel.
local function tell(id, message)
  local client = string.match(id, '^(%x+%-%x+%-%x+%-%x+%-%x+)%.%d+$')
  return client ~= nil and redis.call('PUBLISH', 'leasehold:' .. client, message .. ' ' .. LOCK) > 0
end

local function waiter(id)
  local record = redis.call('HGET', WAITERS, id)
  if not record then
    return nil
  end
  local ticket, lease_ms, alive_until = string.match(record, '^(%d+) (%d+) (%d+)$')
  return tonumber(ticket), tonumber(lease_ms), tonumber(alive_until)
end

-- Takes `id` out of the line; false if it does not stand there.
local function forget(id)
  redis.call('HDEL', WAITERS, id)
  return redis.call('ZREM', QUEUE, id) > 0
end

local function next_ticket(now)
  local last = tonumber(redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')[2] or 0)
  return math.max(last + 1, now)
end

-- Gives the free lock to the oldest waiter that is alive and can be told, or that is `asker`, who is being
-- answered anyway. Returns whose it is now and the token, or nil if it stays free. Every waiter passed on the
-- way is forgotten if it is dead and parked if it is silent; each hand-over also forgets two of those that died
-- while they were parked. So each waiter is met at most three times, however many there are.
local function hand_over(now, asker)
  local token = next_token(now)
  local died = redis.call('ZRANGEBYSCORE', QUEUE, string.format('%.0f', -now / 1000), '(0', 'LIMIT', 0, 2)
  for _, id in ipairs(died) do
    forget(id)
  end
  local silent = {}
  while true do
    local id = redis.call('ZRANGEBYSCORE', QUEUE, 0, '+inf', 'LIMIT', 0, 1)[1]
    if not id then
      return nil
    end
    local ticket, lease_ms, alive_until = waiter(id)
    if not ticket or alive_until * 1000 <= now then
      forget(id)
    else
      local client = string.match(id, '^[^.]+')
      if id == asker or (not silent[client] and tell(id, string.format('grant %s %.0f', id, token))) then
        forget(id)
        return id, grant(id, lease_ms, token)
      end
      silent[client] = true
      redis.call('ZADD', QUEUE, string.format('%.0f', -alive_until), id)
    end
  end
end

