-- The way out for a hold whose owner has others. Stands before release.lua; same ARGV and answers.

-- Somebody may have put something else in the place of the holds; that must not keep the lock.
look_at_clock()
local intact, lead_now, owner_now, several = pcall(settle_holds)
-- Also from holds that do not count now: they might again, if their lead came back.
local left = redis.pcall('ZREM', HOLDS, ARGV[1]) == 1
if intact and several and left then
  local last = redis.call('ZREVRANGE', HOLDS, 0, 0)[1]
  if last then
    if lead_now == ARGV[1] then
      redis.call('SET', LOCK, last .. '/' .. owner_now, 'KEEPTTL')
    end
    expire_with_holds()
    return 1
  end
end

