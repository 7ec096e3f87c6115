-- Comes before everything else in every script.
local call, sub, match = redis.call, string.sub, string.match
