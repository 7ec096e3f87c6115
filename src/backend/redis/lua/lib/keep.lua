-- Two keys that are written together expire when their users have been silent for a lease or two. Returns in how many
-- ms.
local function keep(key, other, lease_ms)
  local left = call('PTTL', key)
  if left < lease_ms * 1.5 then
    left = lease_ms * 2
    local text = string.format('%.0f', left)
    call('PEXPIRE', key, text)
    call('PEXPIRE', other, text)
  end
  return left
end
