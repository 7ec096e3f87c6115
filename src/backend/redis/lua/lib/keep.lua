-- Two keys that are written together expire when their users have been silent for a TTL or two. Returns in how many
-- ms.
local function keep(key, other, ttl_ms)
  local left = call('PTTL', key)
  if left < ttl_ms * 1.5 then
    left = ttl_ms * 2
    local text = string.format('%.0f', left)
    call('PEXPIRE', key, text)
    call('PEXPIRE', other, text)
  end
  return left
end
