-- The fast path of acquire_from.lua in a separate call: the lock is free and has no waiters, and the request is not for
-- an owner.

local lock, fence = KEYS[1], KEYS[2] or DEFAULT_FENCE
if not ARGV[6] and call('EXISTS', lock, KEYS[3] or '{' .. lock .. '}:queue') == 0 then
  local time, text = call('TIME'), ARGV[1]
  local us, proposed = time[1] * 1e6 + time[2], tonumber(text)
  local last = math.floor(tonumber(call('GET', fence) or 0) or 0)
  if not (last < FENCE_LIMIT) then last = 0 end
  local token = math.max(last + TOKENS_PER_GRANT, us, math.min(proposed, math.max(last, us) + PROPOSED_AHEAD_US))
  if token ~= proposed then text = string.format('%.0f', token) end
  call('SET', fence, text, 'PX', FENCE_MS)
  call('PSETEX', lock, ARGV[3], ARGV[2] .. ' ' .. text)
  return text
end
