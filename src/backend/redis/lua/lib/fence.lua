-- What slow paths need besides token.lua.

-- This token was issued with its grant, should the fence have been lost.
local function raise_fence(fence, token)
  fence.least = math.max(fence.least, token + TOKENS_PER_GRANT)
end

-- Writes the fence if more tokens were issued than the first one.
local function close_fence(fence)
  if fence.token ~= fence.written then
    redis.call('SET', fence.key, fence.text, 'KEEPTTL')
    fence.written = fence.token
  end
end

