-- The fast path of acquire.lua in a separate call. The same as acquire_fast.lua with token.lua, in one piece: functions
-- and tables cost time on every call.

local lock = KEYS[1]
if call('EXISTS', lock, KEYS[3] or '{' .. lock .. '}:queue') == 0 then
  local fence, time = KEYS[2] or DEFAULT_FENCE, call('TIME')
  local seconds, us = time[1], time[2]
  local text = #us == 6 and seconds .. us or seconds .. sub('00000' .. us, -6)
  local now, last = tonumber(text), tonumber(call('SET', fence, text, 'KEEPTTL', 'GET') or 0) or 0
  local gap = now - last
  if gap > now % 1e8 or gap < TOKENS_PER_GRANT then
    if gap < TOKENS_PER_GRANT and last < FENCE_LIMIT then
      text = string.format('%.0f', math.floor(last) + TOKENS_PER_GRANT)
    end
    call('SET', fence, text, 'PX', FENCE_MS)
  end
  call('PSETEX', lock, ARGV[2], ARGV[1] .. ' ' .. text)
  return text
end
