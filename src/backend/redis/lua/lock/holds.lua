-- The holds of one owner under several leases: what acquire.lua, release.lua and renew_owned.lua share.
--
-- lock   see value.lua. The lease it names is the lead. Expires with the last of the holds.
-- holds  sorted set: the owner's lease ids, scored by the time at which their leases end, in ms. Only while there are
--        several; counts only if the lead is in it, so what an earlier owner left behind admits nobody.

-- Forgets expired holds; if the lead has expired, another hold becomes the lead. Returns the lead, its token, its
-- owner, and whether there are several holds; nil if none of ours holds the lock.
local function expire_holds(r)
  local lead, token, owner = read_value(call('GET', r.key))
  if not owner or not call('ZSCORE', r.holds, lead) then return lead, token, owner, false end
  -- As for keys, a time is over only after it has passed.
  call('ZREMRANGEBYSCORE', r.holds, '-inf', '(' .. millis(r.clock.ms))
  if not call('ZSCORE', r.holds, lead) then
    lead = call('ZREVRANGE', r.holds, 0, 0)[1]
    if not lead then
      call('DEL', r.key)
      return nil
    end
    call('SET', r.key, write_value(lead, token, owner), 'KEEPTTL')
  end
  return lead, token, owner, true
end

-- Makes the lock last as long as the last of the holds.
local function expire_with_holds(r)
  local last = call('ZREVRANGE', r.holds, 0, 0, 'WITHSCORES')[2]
  call('PEXPIREAT', r.key, last)
  call('PEXPIREAT', r.holds, last)
end
