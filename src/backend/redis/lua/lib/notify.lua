-- Messages to clients. A lease id is <client>.<sequence>, and each client listens on a channel of its own.

-- The channel of the client that made lease `id`.
local function channel(id)
  return CHANNEL_PREFIX .. sub(id, 1, 36)
end

-- Tells the client that made lease `id`; false if nobody there listens. A node of a cluster does not know who listens at others.
local function tell(id, message)
  return call('PUBLISH', channel(id), message) > 0 or IN_CLUSTER
end

local function listens(id)
  return IN_CLUSTER or call('PUBSUB', 'NUMSUB', channel(id))[2] > 0
end

