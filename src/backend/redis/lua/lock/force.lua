-- Ends all holds of the lock, notifies the holders, and hands the lock over to the next waiter.
--
-- KEYS     as in lock.lua, and
-- KEYS[#KEYS]  revoked  see remember_revoked
--
-- Returns  RELEASED if there was a hold, NOT_HELD if not
--
-- Not idempotent: the second time it ends the next holder's lease.

-- Remembers a lease that was released by force, so that its client is told so even if the message is lost.
--
-- revoked  sorted set: lease ids, scored by the time at which each would have ended, in ms. Expires with the last.
local function remember_revoked(id, ends, now)
  local revoked = KEYS[#KEYS]
  -- Something else may be stored there; the lock is released all the same.
  pcall(function()
    call('ZREMRANGEBYSCORE', revoked, '-inf', '(' .. millis(now))
    call('ZADD', revoked, millis(ends), id)
    local surplus = call('ZCARD', revoked) - MAX_REVOKED
    if surplus > 0 then call('ZREM', revoked, unpack(call('ZRANGE', revoked, 0, surplus - 1))) end
    call('PEXPIREAT', revoked, call('ZREVRANGE', revoked, 0, 0, 'WITHSCORES')[2])
  end)
end

local function force(r)
  local value = call('GET', r.key)
  -- Waiters need not wait for the end of a gap (gap.lua).
  redis.pcall('ZREM', r.queue, GAP)
  if not value then
    -- A dead holder may have left it to the waiters.
    r.free = 1
    pcall(hand_over, r)
    return NOT_HELD
  end
  -- If the holds or the queue are broken, the lock is released all the same.
  local intact, lead, token, _, several = pcall(expire_holds, r)
  if not intact then
    lead, token, several = read_value(value)
    several = false
  end
  local holders = { lead }
  if several then holders = call('ZRANGE', r.holds, 0, -1) end
  -- A revocation names the grant that it ends: one that arrives late must not end another grant of the same lease.
  -- Several holds may have different tokens, so in that case it names none.
  for _, id in ipairs(holders) do
    remember_revoked(id, several and call('ZSCORE', r.holds, id) or r.clock.ms + call('PTTL', r.key), r.clock.ms)
    tell(id, REVOKE .. ' ' .. id .. ' ' .. (several and '0' or token) .. ' ' .. r.key)
  end
  call('DEL', r.key, r.holds)
  raise_fence(r.fence, token)
  r.free = 1
  pcall(hand_over, r)
  return RELEASED
end
