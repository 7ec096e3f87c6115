-- Whether a lease that was not found any more was released by force (force.lua). Changes nothing.
--
-- KEYS     as in lock.lua, and last
--          revoked
-- ARGV[1]  lease id
--
-- Returns  1 if it was, 0 if that is not known

return call('ZSCORE', KEYS[#KEYS], ARGV[1]) and 1 or 0
