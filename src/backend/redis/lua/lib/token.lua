-- Fencing tokens of locks (fence.lua).

-- A new token, as text. The first one of a call is the time if possible: converting a number to text costs more than a
-- command.
local function next_token(fence, clock)
  local key, token, now, text = fence.key, fence.token, clock.us, clock.text
  if token then
    token = math.max(token + TOKENS_PER_GRANT, fence.least)
    text = micros(token)
    if fence.unwritten == nil then
      call('SET', key, text, 'KEEPTTL')
    else
      fence.unwritten = text
    end
  else
    local last = exchange(key, text)
    token = math.max(last + TOKENS_PER_GRANT, now, fence.least)
    if token ~= now then text = micros(token) end
    -- The first grant within 100 seconds makes the fence last for another day.
    if token ~= now or now - last > now % 1e8 then call('SET', key, text, 'PX', FENCE_MS) end
  end
  fence.token = token
  return text
end

-- This token was issued with its grant, no matter what the fence says.
local function raise_fence(fence, token)
  fence.least = math.max(fence.least, (tonumber(token) or 0) + TOKENS_PER_GRANT)
end
