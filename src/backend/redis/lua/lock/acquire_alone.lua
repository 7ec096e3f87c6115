-- The short way of acquire.lua; same KEYS, ARGV and answers.

local taken = acquire_alone(KEYS[1], KEYS[2], KEYS[4], ARGV[1], ARGV[2])
if taken then
  return taken
end

