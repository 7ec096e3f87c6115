-- Requests a reentrant lock, for the first time or again. KEYS, ARGV, answers and repetition as in acquire.lua.
--
-- An owner that already holds the lock, under another lease, overtakes all waiters, since they wait for this owner.

local function enter(r, id, ttl_ms, owner)
  local lead, token, owned_by, several = expire_holds(r)
  if not lead or owned_by ~= owner or (lead == id and not several) then return nil end
  local ends = several and call('ZSCORE', r.holds, id)
  if ends then return { token, ends - r.clock.ms } end
  if not several then
    call('DEL', r.holds)
    call('ZADD', r.holds, millis(r.clock.ms + math.max(call('PTTL', r.key), 1)), lead)
  end
  call('ZADD', r.holds, millis(r.clock.ms + ttl_ms), id)
  expire_with_holds(r)
  remove(r, id)
  return token
end

local function acquire_owned(r, id, ttl_ms, waits, repair_ms, owner)
  return enter(r, id, ttl_ms, owner) or acquire(r, enter, id, ttl_ms, waits, repair_ms, owner)
end

