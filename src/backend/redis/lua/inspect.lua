-- Tells who holds the lock and who waits for it. Changes nothing.
--
-- KEYS     as in lock.lua
--
-- Returns  {holder or nil, ms until its lease ends (-1 never, -2 no holder), last token or nil,
--           {lease id, ms for which it counts as alive, ...} in order of arrival, the living only}

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local line = {}
local records = redis.call('HGETALL', KEYS[3])
for i = 1, #records, 2 do
  local ticket, alive_until = string.match(records[i + 1], '^(%d+) %d+ (%d+)$')
  if ticket and tonumber(alive_until) > now then
    table.insert(line, { id = records[i], ticket = tonumber(ticket), alive_ms = tonumber(alive_until) - now })
  end
end
table.sort(line, function(a, b) return a.ticket < b.ticket end)

local waiters = {}
for _, waiter in ipairs(line) do
  table.insert(waiters, waiter.id)
  table.insert(waiters, waiter.alive_ms)
end
return { redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[4]), waiters }
