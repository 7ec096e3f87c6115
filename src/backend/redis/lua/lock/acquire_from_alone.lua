-- The fast path of acquire_from.lua in a separate call: the lock is free and has no waiters, and the request is not for
-- an owner.

if not ARGV[6] and call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local time, text = call('TIME'), ARGV[1]
  local us, proposed = time[1] * 1e6 + time[2], tonumber(text)
  local last = math.floor(tonumber(call('GET', KEYS[3]) or 0) or 0)
  if not (last < FENCE_LIMIT) then last = 0 end
  local token = math.max(last + TOKENS_PER_GRANT, us, math.min(proposed, math.max(last, us) + PROPOSED_AHEAD_US))
  if token ~= proposed then text = string.format('%.0f', token) end
  call('SET', KEYS[3], text, 'PX', FENCE_MS)
  call('SET', KEYS[1], ARGV[2] .. ' ' .. text, 'PX', ARGV[3])
  return text
end
