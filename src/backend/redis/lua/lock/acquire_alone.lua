-- The fast path of acquire.lua in a separate call. The same as acquire_fast.lua with token.lua, in one piece: functions
-- and tables cost time on every call.

if call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local time = call('TIME')
  local text, us = time[1] .. sub('00000' .. time[2], -6), time[1] * 1e6 + time[2]
  local last = tonumber(call('SET', KEYS[3], text, 'KEEPTTL', 'GET') or 0) or 0
  local gap = us - last
  if gap > us % 1e8 or gap < TOKENS_PER_GRANT then
    if gap < TOKENS_PER_GRANT and last < FENCE_LIMIT then
      text = string.format('%.0f', math.floor(last) + TOKENS_PER_GRANT)
    end
    call('SET', KEYS[3], text, 'PX', FENCE_MS)
  end
  call('SET', KEYS[1], ARGV[1] .. ' ' .. text, 'PX', ARGV[2])
  return text
end
