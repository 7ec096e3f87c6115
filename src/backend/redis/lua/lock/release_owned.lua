-- Ends one lease of an owner. KEYS, ARGV, answers and repetition as in release.lua.

local function release_owned(r, id, gap_ms)
  -- Something else may have been stored in place of the holds; that must not keep the lock.
  local intact, lead, token, owner, several = pcall(expire_holds, r)
  -- Also from holds that do not count now: they might count again if their lead came back.
  local left = redis.pcall('ZREM', r.holds, id) == 1
  if intact and several and left then
    local last = call('ZREVRANGE', r.holds, 0, 0)[1]
    if last then
      if lead == id then call('SET', r.key, write_value(last, token, owner), 'KEEPTTL') end
      expire_with_holds(r)
      return RELEASED
    end
  end
  return release(r, id, gap_ms)
end

