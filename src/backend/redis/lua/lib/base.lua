-- Local names are found sooner than fields of a global table.
local call = redis.call
local sub = string.sub
local match = string.match
