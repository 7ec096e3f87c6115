-- The waiters in the hash `key` (queue.lua) that count as alive: lease id, for how many ms, permits and ticket of each.
local function living(key, now_ms)
  local waiters, records = {}, call('HGETALL', key)
  for i = 1, #records, 2 do
    local ticket, alive_until, permits = match(records[i + 1], '^(%d+) %d+ (%d+) (%d+)')
    if ticket and tonumber(alive_until) > now_ms then
      for _, part in ipairs({ records[i], tonumber(alive_until) - now_ms, tonumber(permits), ticket }) do
        table.insert(waiters, part)
      end
    end
  end
  return waiters
end
