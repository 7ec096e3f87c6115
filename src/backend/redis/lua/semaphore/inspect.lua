-- Tells who holds permits and who waits for them. Changes nothing.
--
-- KEYS     as in line.lua and semaphore.lua
-- ARGV[1]  'everybody', or 'numbers' for empty lists
--
-- Returns  {limit in force or nil, permits in use, {lease id, ms for which it counts as alive, permits, ...} in order of
--           arrival, the living only, {lease id, ms until its lease ends, permits, token, ...} by that time}

local now = math.floor(now_us() / 1000)
local now_text = string.format('%.0f', now)
local HOLDERS, QUEUE, FENCE, HOLDS = KEYS[1], KEYS[2], KEYS[4], KEYS[5]

local function hold(id)
  local permits, token = string.match(redis.call('HGET', HOLDS, id) or '', '^(%d+) (%d+)$')
  return tonumber(permits or 0), token
end

local limit, _, lapse, used = unpack_fence(redis.call('GET', FENCE))
if not used or redis.call('EXISTS', HOLDERS) == 0 then
  -- The fence was lost, or the holders are gone.
  used = 0
  for _, id in ipairs(redis.call('ZRANGE', HOLDERS, 0, -1)) do
    used = used + hold(id)
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', now_text)) do
  used = used - hold(id)
end
if limit and now >= lapse and redis.call('EXISTS', QUEUE) == 0
  and redis.call('ZCOUNT', HOLDERS, '(' .. now_text, '+inf') == 0 then
  limit = nil
end

local waiters, holders = {}, {}
if ARGV[1] == 'everybody' then
  waiters = living(now)
  local held = redis.call('ZRANGEBYSCORE', HOLDERS, '(' .. now_text, '+inf', 'WITHSCORES')
  for i = 1, #held, 2 do
    local permits, token = hold(held[i])
    for _, part in ipairs({ held[i], tonumber(held[i + 1]) - now, permits, token or '0' }) do
      table.insert(holders, part)
    end
  end
end
return { limit or false, used, waiters, holders }
