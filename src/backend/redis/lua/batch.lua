-- Carries out many operations in one call, in the order given. Stands after the short ways as functions, and long_ways(), which
-- makes a table of functions, one for each kind of operation, by the letter that names it. They are made only if one is needed.
--
-- ARGV[1]  the operations one after another in MessagePack, since every key and argument of a call costs as much as a command
--          here: the name of each, how many arguments it has, its key, its arguments. A key that is not itself the hash tag of its
--          others comes after true and what these start with; instead of the key of the operation before comes false.
--
-- Returns  the operations' answers in the same order; {'!', text} for one that failed; {'+', answer, grant} for one that granted
--          something to another request of the same client, with what would otherwise be published to it
--
-- An operation that fails, because something else stands under its key, say, harms no other one.

-- Whatever goes wrong: the long way looks for itself, does what can be done, and tells what stands in the way.
local function short(way, ...)
  local done, answer = pcall(way, ...)
  return done and answer
end

local function careful(way, ...)
  local done, answer = pcall(way, ...)
  return done and answer or not done and { '!', type(answer) == 'table' and answer.err or tostring(answer) }
end

-- The key of the operation at hand, and what stands before and behind it in the names of the others (keys.rs).
local key, before, behind

local function keys()
  local stem = before .. key .. behind
  return { key, stem .. ':queue', stem .. ':waiters', stem .. ':fence', stem .. ':holds' }
end

-- The semaphores that short ways have met, by their keys.
local met = {}

local function short_way_of_permits(operation, ...)
  local semaphore = met[key]
  if not semaphore then
    semaphore = look(now, now_us, now_ms, unpack(keys()))
    semaphore.grants_with_answers = true
    met[key] = semaphore
  end
  if operation == 'p' then
    return acquire_permits(semaphore, ...)
  end
  local released, grant = release_permits(semaphore, ...)
  return grant and { '+', released, grant } or released
end

local parts, answers, way = { cmsgpack.unpack(ARGV[1]) }, {}, nil
local part = 1
while parts[part] do
  local operation, args, arg = parts[part], parts[part + 1], part + 3
  local own = parts[part + 2]
  if own == true then
    before, key, behind, arg = parts[part + 3], parts[part + 4], '', part + 5
  elseif own then
    before, key, behind = '{', own, '}'
  end
  local answer, stands
  if operation == 'a' then
    local queue = before .. key .. behind .. ':queue'
    answer = short(acquire_alone, key, queue, before .. key .. behind .. ':fence', parts[arg], parts[arg + 1], now, now_us)
    if not answer and args == 2 then
      answer = short(acquire_again, key, queue, before .. key .. behind .. ':waiters', parts[arg], parts[arg + 1])
      stands = answer
    end
  elseif operation == 'r' then
    answer = short(release_alone, key, before .. key .. behind .. ':queue', parts[arg])
  elseif operation == 'n' then
    answer = short(renew_alone, key, before .. key .. behind .. ':fence', parts[arg], parts[arg + 1])
  elseif operation == 'p' or operation == 's' then
    answer = short(short_way_of_permits, operation, unpack(parts, arg, arg + args - 1))
  end
  if not answer then
    if met[key] then
      note(met[key])
      met[key] = nil
    end
    way = way or long_ways()
    answer = careful(way[operation], keys(), { unpack(parts, arg, arg + args - 1) })
  end
  if not stands then
    -- Something may have changed in the line that the operation before was about.
    line = nil
  end
  answers[#answers + 1] = answer
  part = arg + args
end
for _, semaphore in pairs(met) do
  note(semaphore)
end
return answers
