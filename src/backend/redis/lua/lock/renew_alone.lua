-- The short way of renew.lua; same KEYS, ARGV and answers.

if renew_alone(KEYS[1], KEYS[2], ARGV[1], ARGV[2]) then
  return 'renewed'
end

