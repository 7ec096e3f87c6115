-- The fast path of acquire.lua in a call of its own. The same as acquire_fast.lua with token.lua, in one piece: functions and tables
-- cost time on every call.

if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local fence, time = KEYS[4], redis.call('TIME')
  local text, us = time[1] .. string.sub('00000' .. time[2], -6), time[1] * 1e6 + time[2]
  local token, count = us, ARGV[3] and tonumber(ARGV[3]) or TOKENS_PER_GRANT
  local last = us + count - 1
  local before = redis.call('SET', fence, count == 1 and text or string.format('%d%06d', last / 1e6, last % 1e6), 'KEEPTTL', 'GET')
  before = tonumber(before or 0) or 0
  if not (before >= us - us % 1e8 and before < us) then
    -- The first grant within these 100 seconds, or the last one's tokens reach up to now: they count, if they are tokens.
    if before >= us and before < 2 ^ 53 then
      token = math.floor(before) + 1
      text = string.format('%.0f', token)
      last = token + count - 1
    end
    redis.call('SET', fence, string.format('%.0f', last), 'PX', FENCE_MS)
  end
  redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. text, 'PX', ARGV[2])
  return token
end
