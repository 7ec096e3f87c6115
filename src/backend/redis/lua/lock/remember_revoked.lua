-- Remembers the leases that were released by force, so that their clients are told so even if the message is lost.
--
-- revoked  sorted set: lease ids, scored by the time at which each would have ended, in ms. Expires with the last of them.

local function remember_revoked(id, ends, now)
  local revoked = KEYS[#KEYS]
  -- Something else may be stored there; the lock is released all the same.
  pcall(function()
    call('ZREMRANGEBYSCORE', revoked, '-inf', '(' .. millis(now))
    call('ZADD', revoked, millis(ends), id)
    call('ZREMRANGEBYRANK', revoked, 0, -1 - MAX_REVOKED)
    call('PEXPIREAT', revoked, call('ZREVRANGE', revoked, 0, 0, 'WITHSCORES')[2])
  end)
end
