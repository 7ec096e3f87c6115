-- The short ways of a lock that nobody else wants: by far the most frequent case. The scripts of these operations begin with
-- them, since whatever else a script defines costs time on every call; batch.lua takes them without the detour through
-- tables of keys and arguments.
--
-- All return nil if the case is not theirs, or if something unexpected stands under a key: that is for the long way.

-- The time in microseconds as text: to turn such a number into text costs more than any command here.
local function clock()
  local time = redis.call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6)
end

-- Returns the token if the lock was free and nobody waited for it. `now` is what clock() says, or nil.
local function acquire_alone(lock, queue, fence, id, lease_ms, now)
  if redis.call('EXISTS', lock, queue) ~= 0 then
    return nil
  end
  local token = now or clock()
  local previous = redis.pcall('SET', fence, token, 'KEEPTTL', 'GET')
  if type(previous) == 'table' then
    return nil
  end
  local last, now_us = tonumber(previous or 0), tonumber(token)
  if not previous or not last or math.floor(last / 1e8) ~= math.floor(now_us / 1e8) then
    -- The first grant within these 100 seconds: the fence is remembered for another day.
    redis.call('PEXPIRE', fence, '86400000')
  end
  -- 16 is TOKENS_PER_GRANT in line.lua.
  if last and last + 16 > now_us and last < 2 ^ 53 then
    -- The clock was set back, or the last grant's tokens reach up to now: they count.
    token = string.format('%.0f', last + 16)
    redis.call('SET', fence, token, 'KEEPTTL')
  end
  redis.call('SET', lock, id, 'PX', lease_ms)
  return token
end

-- Returns 'renewed' if this lease held the lock. Its fence is remembered for another day, since the lock is in use.
local function renew_alone(lock, fence, id, lease_ms)
  if redis.pcall('GET', lock) == id then
    redis.call('PEXPIRE', lock, lease_ms)
    redis.call('PEXPIRE', fence, '86400000')
    return 'renewed'
  end
end

-- Returns 1 if this lease held the lock and nobody waited for it.
local function release_alone(lock, queue, id)
  if redis.pcall('GET', lock) == id and redis.call('EXISTS', queue) == 0 then
    redis.call('DEL', lock)
    return 1
  end
end

