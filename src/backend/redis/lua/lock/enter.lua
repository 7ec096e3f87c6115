-- The way in for an owner that holds the lock already, under another lease. Stands before acquire.lua; same ARGV and
-- answers. Overtakes everybody who waits: they wait for this owner.

enter = function()
  local lead, owner, several = settle_holds()
  if not lead or owner ~= ARGV[5] or (lead == ARGV[1] and not several) then
    return nil
  end
  local ends = several and redis.call('ZSCORE', HOLDS, ARGV[1])
  if ends then
    return { present_token(), ends - now_ms }
  end
  if not several then
    redis.call('DEL', HOLDS)
    redis.call('ZADD', HOLDS, in_full(now_ms + math.max(redis.call('PTTL', LOCK), 1)), lead)
  end
  redis.call('ZADD', HOLDS, in_full(now_ms + ARGV[2]), ARGV[1])
  expire_with_holds()
  forget(ARGV[1])
  local token = present_token()
  redis.call('SET', FENCE, token, 'PX', FENCE_MS)
  return token
end

look_at_clock()
local entered = enter()
if entered then
  return entered
end

