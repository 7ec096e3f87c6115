-- The short way of acquire.lua: the lock is free and nobody waits for it. By far the most frequent case, so it stands before
-- everything else a script defines, which costs time on every call. The same answer.
--
-- lock, queue, fence, id, lease_ms  as in acquire.lua
-- now, now_us                       the time in microseconds as text and as a number, or nil
--
-- Whatever stands in the way, such as something else under the fence's key, is for the long way.

if redis.call('EXISTS', lock, queue) == 0 then
  local token = now
  if not token then
    local time = redis.call('TIME')
    -- To turn such a number into text costs more than any command here.
    token, now_us = time[1] .. string.sub('00000' .. time[2], -6), time[1] * 1e6 + time[2]
  end
  local previous = redis.pcall('SET', fence, token, 'KEEPTTL', 'GET')
  if type(previous) ~= 'table' then
    local last = tonumber(previous or 0) or 0
    local gap = now_us - last
    if gap > now_us % 1e8 or gap < 16 then
      -- The first grant within these 100 seconds: the fence is remembered for another day.
      redis.call('PEXPIRE', fence, '86400000')
      if gap < 16 and last < 2 ^ 53 then
        -- The clock was set back, or the last grant's tokens (TOKENS_PER_GRANT in line.lua) reach up to now: they count.
        token = string.format('%.0f', last + 16)
        redis.call('SET', fence, token, 'KEEPTTL')
      end
    end
    redis.call('SET', lock, id, 'PX', lease_ms)
    return token
  end
end
