-- Restarts the leases of many mutexes, each as renew.lua would.
--
-- KEYS     the locks
-- ARGV[1]  TTL, in ms, of all of them
-- ARGV[2]  the lease ids in the order of the locks, separated by spaces: one argument costs the client less than many
--
-- Returns  one letter per lease: EACH_RENEWED; EACH_TAKEN if something else holds the lock, EACH_EXPIRED if nothing
--          does; EACH_UNKNOWN if what is stored there is no string
--
-- Idempotent. Never takes back a lock that was lost.

local ttl_ms, answers = ARGV[1], {}
for id in string.gmatch(ARGV[2], '%S+') do
  local lock = KEYS[#answers + 1]
  local value = redis.pcall('GET', lock)
  local answer = EACH_TAKEN
  if not value then
    answer = EACH_EXPIRED
  elseif type(value) == 'table' then
    answer = EACH_UNKNOWN
  elseif names_lease(value, id) then
    call('PEXPIRE', lock, ttl_ms)
    answer = EACH_RENEWED
  end
  answers[#answers + 1] = answer
end
return table.concat(answers)
