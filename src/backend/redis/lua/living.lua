-- Those who wait, for inspect.lua of locks and of semaphores. Needs nothing else.
--
-- KEYS[3]  waiters  as in line.lua

local function now_us()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- {lease id, ms for which it counts as alive, permits, ...} in order of arrival.
local function living(now_ms)
  local line = {}
  local records = redis.call('HGETALL', KEYS[3])
  for i = 1, #records, 2 do
    local ticket, alive_until, permits = string.match(records[i + 1], '^(%d+) %d+ (%d+) (%d+)')
    if ticket and tonumber(alive_until) > now_ms then
      local alive_ms = tonumber(alive_until) - now_ms
      table.insert(line, { id = records[i], ticket = ticket, alive_ms = alive_ms, permits = tonumber(permits) })
    end
  end
  table.sort(line, function(a, b)
    return a.ticket < b.ticket
  end)
  local waiters = {}
  for _, waiter in ipairs(line) do
    table.insert(waiters, waiter.id)
    table.insert(waiters, waiter.alive_ms)
    table.insert(waiters, waiter.permits)
  end
  return waiters
end

