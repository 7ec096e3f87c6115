-- Messages to clients. A lease id is <client>.<sequence>, and each client listens on its own channel.

-- The channel of the client that created lease `id`.
local function channel(id) return CHANNEL_PREFIX .. sub(id, 1, 36) end

-- Notifies the client that created lease `id`; false if it is not listening. A node of a cluster does not know who
-- listens at others.
local function tell(id, message) return call('PUBLISH', channel(id), message) > 0 or IN_CLUSTER end

local function listens(id) return IN_CLUSTER or call('PUBSUB', 'NUMSUB', channel(id))[2] > 0 end
