-- The holds of one owner under several leases: what enter.lua, leave.lua and renew_hold.lua share, after line.lua.
--
-- KEYS[1]  lock   string: "<lease id>/<owner>". The lease it names is the lead. Expires with the last of the holds.
-- KEYS[5]  holds  sorted set: the owner's lease ids by the time their leases end, in ms. Only while there were several
--                 holds; it counts only if the lead is in it, so what an earlier owner left behind lets nobody in.
--                 Expires with the lock.

local HOLDS = KEYS[5]

-- Forgets holds that have run out; if the lead has, another one becomes it. Returns the lead, its owner, and whether
-- there are several holds; nil if no owner holds the lock.
local function settle_holds()
  local value = redis.call('GET', KEYS[1])
  -- What another library puts there may look like an owner, but hardly like a lease id.
  local lead, owner = string.match(value or '', '^(%x+%-%x+%-%x+%-%x+%-%x+%.%d+)/(.*)$')
  if not lead or not redis.call('ZSCORE', HOLDS, lead) then
    return lead, owner, false
  end
  -- As for keys, a time is over when it has passed, not when it has come.
  redis.call('ZREMRANGEBYSCORE', HOLDS, '-inf', '(' .. in_full(now_ms))
  if not redis.call('ZSCORE', HOLDS, lead) then
    lead = redis.call('ZREVRANGE', HOLDS, 0, 0)[1]
    if not lead then
      redis.call('DEL', KEYS[1])
      return nil
    end
    redis.call('SET', KEYS[1], lead .. '/' .. owner, 'KEEPTTL')
  end
  return lead, owner, true
end

-- Lets the lock last as long as the last of the holds.
local function expire_with_holds()
  local last = redis.call('ZREVRANGE', HOLDS, 0, 0, 'WITHSCORES')[2]
  redis.call('PEXPIREAT', KEYS[1], last)
  redis.call('PEXPIREAT', HOLDS, last)
end

