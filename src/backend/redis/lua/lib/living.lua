-- The waiters, for inspection.

-- {lease id, ms for which it counts as alive, permits, ...} in order of arrival; of the hash `key`, as in queue.lua.
local function living(key, now_ms)
  local places = {}
  local records = call('HGETALL', key)
  for i = 1, #records, 2 do
    local ticket, alive_until, permits = match(records[i + 1], '^(%d+) %d+ (%d+) (%d+)')
    if ticket and tonumber(alive_until) > now_ms then
      local alive_ms = tonumber(alive_until) - now_ms
      table.insert(places, { id = records[i], ticket = ticket, alive_ms = alive_ms, permits = tonumber(permits) })
    end
  end
  table.sort(places, function(a, b) return a.ticket < b.ticket end)
  local waiters = {}
  for _, waiter in ipairs(places) do
    for _, field in ipairs({ 'id', 'alive_ms', 'permits' }) do
      table.insert(waiters, waiter[field])
    end
  end
  return waiters
end

