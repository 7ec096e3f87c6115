-- Lets the leases of many mutexes begin anew, each as renew.lua would. Needs nothing else.
--
-- KEYS     the locks, each followed by its fence if ARGV[3] is 2
-- ARGV[1]  lease, in ms, of all of them
-- ARGV[2]  the lease ids in the order of the locks, separated by spaces: one argument costs the client less than many
-- ARGV[3]  keys per lease, 1 or 2: with their fences, these are remembered for another day
--
-- Returns  one letter per lease: 'r'enewed; 't'aken if another lease holds the lock, 'e'xpired if none does; '?' if something
--          else stands there
--
-- Idempotent. Never takes back a lock that was lost.

local lease_ms, width = ARGV[1], tonumber(ARGV[3])
local answers, key = {}, 1
for id in string.gmatch(ARGV[2], '%S+') do
  local lock = KEYS[key]
  local holder = redis.pcall('GET', lock)
  local answer = 't'
  if holder == id then
    redis.call('PEXPIRE', lock, lease_ms)
    if width == 2 then
      redis.call('PEXPIRE', KEYS[key + 1], '86400000')
    end
    answer = 'r'
  elseif not holder then
    answer = 'e'
  elseif type(holder) == 'table' then
    answer = '?'
  end
  answers[#answers + 1] = answer
  key = key + width
end
return table.concat(answers)
