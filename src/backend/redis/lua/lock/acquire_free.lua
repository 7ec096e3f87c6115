-- The short way of acquire.lua, which begins with it: a lock that is free and that nobody waits for. It stands
-- before everything else because it is by far the most frequent case, and what a script defines costs time on
-- every call. Same KEYS, ARGV and answers.

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local time = redis.call('TIME')
  -- As text throughout: to turn such a number into text costs more than any command here.
  local token = time[1] .. string.sub('00000' .. time[2], -6)
  local previous = redis.call('SET', KEYS[4], token, 'KEEPTTL', 'GET')
  if not previous or string.sub(previous, 1, -9) ~= string.sub(token, 1, -9) then
    -- The first grant within these 100 seconds: the fence is remembered for another day.
    redis.call('PEXPIRE', KEYS[4], '86400000')
  end
  local last = tonumber(previous or 0)
  if last and last >= tonumber(token) and last < 2 ^ 53 then
    -- The clock was set back: the last token counts.
    token = string.format('%.0f', last + 1)
    redis.call('SET', KEYS[4], token, 'KEEPTTL')
  end
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return token
end

