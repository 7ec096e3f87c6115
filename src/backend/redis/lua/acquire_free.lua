-- The short way of acquire.lua, which begins with it: a lock that is free and that nobody waits for. It stands
-- before everything else because it is by far the most frequent case, and what a script defines costs time on
-- every call. Same KEYS, ARGV and answers.

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local time = redis.call('TIME')
  local token = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local last = tonumber(redis.call('SET', KEYS[4], string.format('%.0f', token), 'PX', '86400000', 'GET') or 0)
  if last and last >= token then
    -- The clock was set back: the last token counts.
    token = last + 1
    redis.call('SET', KEYS[4], string.format('%.0f', token), 'PX', '86400000')
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return token
end

