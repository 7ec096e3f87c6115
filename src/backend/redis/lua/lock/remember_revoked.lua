-- Remembers the leases that were released by force, so that their clients are told so even if the message is lost.
--
-- revoked  sorted set: lease ids, scored by the time at which each would have ended, in ms. Expires with the last of them.

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
