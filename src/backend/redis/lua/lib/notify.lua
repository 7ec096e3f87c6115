-- Messages to clients. A lease id is <client>.<sequence>, and each client listens on a channel of its own.

-- The channel of the client that made lease `id`, or nil.
local function channel(id)
  local client = match(id, '^(%x+%-%x+%-%x+%-%x+%-%x+)%.%d+$')
  return client and CHANNEL_PREFIX .. client
end

-- Tells the client that made lease `id`; false if nobody there listens.
local function tell(id, message)
  local to = channel(id)
  return to ~= nil and call('PUBLISH', to, message) > 0
end

local function listens(id)
  local to = channel(id)
  return to ~= nil and call('PUBSUB', 'NUMSUB', to)[2] > 0
end

