-- The start of every script.
local call, sub, match = redis.call, string.sub, string.match
