-- Carries out many operations in one call, in the order given. Stands after the short ways as functions, and long_ways(), which
-- makes a table of functions, one for each kind of operation, by the byte that names it. They are made only if one is needed.
--
-- KEYS  those of the operations, one after another
-- ARGV  first three characters for each operation, its name, how many keys and how many arguments it has; then their arguments,
--       one after another
--
-- Returns  the operations' answers in the same order; {'!', text} for one that failed
--
-- An operation that fails, because something else stands under its key, say, harms no other one.

local ACQUIRE, RELEASE, RENEW, ACQUIRE_PERMITS, RELEASE_PERMITS = string.byte('arnps', 1, 5)

local function careful(way, ...)
  local done, answer = pcall(way, ...)
  return done and answer or not done and { '!', type(answer) == 'table' and answer.err or tostring(answer) }
end

local time = redis.call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6)
local answers, way = {}, nil
local key, arg = 1, 1
for header = 1, #ARGV[1], 3 do
  local operation, keys, args = string.byte(ARGV[1], header, header + 2)
  keys, args = keys - 48, args - 48
  local answer
  if operation == ACQUIRE then
    answer = acquire_alone(KEYS[key], KEYS[key + 1], KEYS[key + 3], ARGV[arg + 1], ARGV[arg + 2], now)
  elseif operation == RELEASE then
    answer = release_alone(KEYS[key], KEYS[key + 1], ARGV[arg + 1])
  elseif operation == RENEW then
    answer = renew_alone(KEYS[key], KEYS[key + 1], ARGV[arg + 1], ARGV[arg + 2])
  elseif operation == ACQUIRE_PERMITS or operation == RELEASE_PERMITS then
    answer = careful(
      operation == ACQUIRE_PERMITS and acquire_permits or release_permits,
      KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4],
      unpack(ARGV, arg + 1, arg + args)
    )
  end
  if not answer then
    way = way or long_ways()
    answer = careful(
      way[operation],
      { unpack(KEYS, key, key + keys - 1) },
      { unpack(ARGV, arg + 1, arg + args) }
    )
  end
  answers[#answers + 1] = answer
  key, arg = key + keys, arg + args
end
return answers
