-- Carries out many operations in one call, in the order given. Stands after the short ways as functions, and long_ways(), which
-- makes a table of functions, one for each kind of operation, by the byte that names it. They are made only if one is needed.
--
-- KEYS  those of the operations, one after another
-- ARGV  first three characters for each operation: its name, how many keys it has, '0' if they are those of the operation before
--       it, and how many arguments; then their arguments, one after another
--
-- Returns  the operations' answers in the same order; {'!', text} for one that failed; {'+', answer, grant} for one that granted
--          something to another request of the same client, with what would otherwise be published to it
--
-- An operation that fails, because something else stands under its key, say, harms no other one.

local ACQUIRE, RELEASE, RENEW, ACQUIRE_PERMITS, RELEASE_PERMITS = string.byte('arnps', 1, 5)

-- Whatever goes wrong: the long way looks for itself, does what can be done, and tells what stands in the way.
local function short(way, ...)
  local done, answer = pcall(way, ...)
  return done and answer
end

local function careful(way, ...)
  local done, answer = pcall(way, ...)
  return done and answer or not done and { '!', type(answer) == 'table' and answer.err or tostring(answer) }
end

-- The semaphores that short ways have met, by their fences.
local met = {}

local function short_way_of_permits(operation, key, ...)
  local fence = KEYS[key + 3]
  local semaphore = met[fence]
  if not semaphore then
    semaphore = look(now, now_us, now_ms, unpack(KEYS, key, key + 4))
    semaphore.grants_with_answers = true
    met[fence] = semaphore
  end
  if operation == ACQUIRE_PERMITS then
    return acquire_permits(semaphore, ...)
  end
  local released, grant = release_permits(semaphore, ...)
  return grant and { '+', released, grant } or released
end

local answers, way = {}, nil
local key, keys, arg = 1, 0, 1
for header = 1, #ARGV[1], 3 do
  local operation, own_keys, args = string.byte(ARGV[1], header, header + 2)
  if own_keys > 48 then
    key, keys = key + keys, own_keys - 48
  end
  args = args - 48
  local answer, stands
  if operation == ACQUIRE then
    answer = short(acquire_alone, KEYS[key], KEYS[key + 1], KEYS[key + 3], ARGV[arg + 1], ARGV[arg + 2], now)
    if not answer and args == 2 then
      answer = short(acquire_again, KEYS[key], KEYS[key + 1], KEYS[key + 2], ARGV[arg + 1], ARGV[arg + 2])
      stands = answer
    end
  elseif operation == RELEASE then
    answer = short(release_alone, KEYS[key], KEYS[key + 1], ARGV[arg + 1])
  elseif operation == RENEW then
    answer = short(renew_alone, KEYS[key], KEYS[key + 1], ARGV[arg + 1], ARGV[arg + 2])
  elseif operation == ACQUIRE_PERMITS or operation == RELEASE_PERMITS then
    answer = short(short_way_of_permits, operation, key, unpack(ARGV, arg + 1, arg + args))
  end
  if not answer then
    local fence = KEYS[key + 3]
    if met[fence] then
      note(met[fence])
      met[fence] = nil
    end
    way = way or long_ways()
    answer = careful(
      way[operation],
      { unpack(KEYS, key, key + keys - 1) },
      { unpack(ARGV, arg + 1, arg + args) }
    )
  end
  if not stands then
    -- Something may have changed in the line that the operation before was about.
    line = nil
  end
  answers[#answers + 1] = answer
  arg = arg + args
end
for _, semaphore in pairs(met) do
  note(semaphore)
end
return answers
