local call = redis.call
local sub = string.sub
local match = string.match
