-- A request in a call of its own: the short way if it can.

local s = look(now, now_us, now_ms, unpack(KEYS))
local done, answer = pcall(acquire_permits, s, unpack(ARGV))
note(s)
if done and answer then
  return answer
end
