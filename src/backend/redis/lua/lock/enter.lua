-- The way in for an owner that holds the lock already, under another lease. Stands before acquire.lua; same ARGV and
-- answers. Overtakes everybody who waits: they wait for this owner.

enter = function()
  local now = now_us()
  local now_ms = math.floor(now / 1000)
  local lead, owner, several = settle_holds(now_ms)
  if not lead or owner ~= ARGV[5] or (lead == ARGV[1] and not several) then
    return nil
  end
  if not several then
    redis.call('DEL', HOLDS)
    redis.call('ZADD', HOLDS, string.format('%.0f', now_ms + math.max(redis.call('PTTL', LOCK), 1)), lead)
  end
  redis.call('ZADD', HOLDS, string.format('%.0f', now_ms + tonumber(ARGV[2])), ARGV[1])
  expire_with_holds()
  forget(ARGV[1])
  local token = last_token()
  token = token > 0 and token or next_token(now)
  redis.call('SET', FENCE, string.format('%.0f', token), 'PX', FENCE_MS)
  return token
end

local entered = enter()
if entered then
  return entered
end

