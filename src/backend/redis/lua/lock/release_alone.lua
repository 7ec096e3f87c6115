-- The short way of release.lua; same KEYS, ARGV and answers.

if release_alone(KEYS[1], KEYS[2], ARGV[1]) then
  return 1
end

