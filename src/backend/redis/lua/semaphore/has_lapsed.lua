-- When an unused limit is no longer in force.

-- Whether the limit has lapsed. Its time must be over, and there must be no holders or waiters. Ended leases and dead
-- waiters do not count, even though the keys still have them.
local function has_lapsed(s)
  local now = s.clock.ms
  if now < s.lapse or call('ZCOUNT', s.key, '(' .. millis(now), '+inf') > 0 then return false end
  local waiters = call('HGETALL', s.waiters)
  for i = 2, #waiters, 2 do
    local alive_until = match(waiters[i], '^%d+ %d+ (%d+)')
    if alive_until and tonumber(alive_until) > now then return false end
  end
  return true
end
