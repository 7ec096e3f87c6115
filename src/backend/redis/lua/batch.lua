-- Carries out many operations in one call, in the order given. Follows the fast paths. Those where somebody waits for a lock, and
-- the slow paths (operations.lua), are only created if one of them is needed: every function costs time, used or not.
--
-- ARGV[1]  the operations one after another in MessagePack, since every key and argument of a call costs as much as a command
--          here: of each its code, its key, how many arguments it has, its arguments. ACQUIRE and RENEW have two and RELEASE
--          has one, which is not said; a request for a lock with more is ACQUIRE_WITH. A key that is not itself the hash tag
--          of its others comes after true and what these start with; instead of the key of the operation before comes false.
--          USE_FENCE and the name of a fence tell of which prefix those that follow are.
--
-- Returns  the operations' answers in the same order; {FAILED, text} for one that failed; {WITH_GRANT, answer, grant} for one
--          that granted something to another request of the same client, with what would otherwise be published to it
--
-- An operation that fails, because something else is stored under its key, say, harms no other one.

local parts, answers, number, next_at = { cmsgpack.unpack(ARGV[1]) }, {}, 0, 1
local clock = read_clock()
local fences, fence, slow, seen = {}, nil, nil, nil
-- The key of the operation at hand, and what comes before and after it in the names of the others (keys.rs).
local key, before, after
-- The semaphores that fast paths have read the state of, by their keys.
local semaphores = {}

-- Whatever goes wrong with a fast path, the slow path looks for itself.
local function permits_fast(operation, kind, ...)
  local semaphore = semaphores[key]
  if not semaphore or semaphore.kind ~= kind then
    if semaphore then close_state(semaphore) end
    semaphore = semaphore_at(key, before .. key .. after .. ':queue', kind, fence, clock)
    semaphore.grants_with_answers = true
    semaphores[key] = semaphore
  end
  local done, answer, grant = pcall(operation, semaphore, ...)
  return done and (grant and { WITH_GRANT, answer, grant } or answer)
end

-- The fast paths where somebody waits for a lock.
local acquire_again_fast, join_fast, hand_over_fast
local function need_waiting_paths()
  if not join_fast then acquire_again_fast, join_fast, hand_over_fast = waiting_paths() end
end

-- A waiter that asks again, or a new one.
local function wait_fast(id, lease_ms)
  need_waiting_paths()
  local stem = before .. key .. after
  local queue, waiters = stem .. ':queue', stem .. ':waiters'
  local done, answer, still_seen = pcall(acquire_again_fast, seen, key, queue, waiters, clock, id, lease_ms)
  seen = done and still_seen or nil
  if answer then return done and answer end
  done, answer = pcall(join_fast, key, queue, waiters, clock, id, lease_ms)
  return done and answer
end

-- A holder that others wait for.
local function pass_on_fast(value, id)
  need_waiting_paths()
  local stem = before .. key .. after
  local done, answer = pcall(hand_over_fast, key, value, stem .. ':queue', stem .. ':waiters', fence, clock, id)
  return done and answer
end

local function slow_path(code, ...)
  -- Something may change in the queue that the operations before were about.
  seen = nil
  if semaphores[key] then
    close_state(semaphores[key])
    semaphores[key] = nil
  end
  slow = slow or slow_paths()
  -- It may grant a lock under a later token.
  fence.shared = false
  return slow(code, key, before .. key .. after .. ':queue', fence, clock, ...)
end

local function carry_out_all()
  local parts, answers, clock = parts, answers, clock
  local acquire_fast, release_fast, renew, slow_path = acquire_fast, release_fast, renew, slow_path
  local code = parts[next_at]
  while code do
    local own, arg = parts[next_at + 1], next_at + 2
    if code == USE_FENCE then
      fence = fences[own] or open_fence(own, false)
      fences[own], next_at = fence, arg
    else
      if own == true then
        before, key, after, arg = parts[arg], parts[arg + 1], '', arg + 2
      elseif own then
        before, key, after = '{', own, '}'
      end
      local answer
      if code == ACQUIRE then
        next_at = arg + 2
        local id, lease_ms = parts[arg], parts[arg + 1]
        answer = acquire_fast(key, before .. key .. after .. ':queue', fence, clock, id, lease_ms)
          or wait_fast(id, lease_ms) or slow_path(code, id, lease_ms)
      elseif code == RELEASE then
        next_at, seen = arg + 1, nil
        local id = parts[arg]
        local released, value = release_fast(key, fence, id)
        answer = released or pass_on_fast(value, id) or slow_path(code, id)
      elseif code == RENEW then
        next_at = arg + 2
        answer = renew(key, parts[arg], parts[arg + 1])
      else
        next_at = arg + 1 + parts[arg]
        if code == ACQUIRE_PERMITS then
          answer = permits_fast(acquire_permits_fast, unpack(parts, arg + 1, next_at - 1))
        elseif code == RELEASE_PERMITS then
          answer = permits_fast(release_permits_fast, unpack(parts, arg + 1, next_at - 1))
        elseif code == ACQUIRE_WITH then
          code = ACQUIRE
          answer = acquire_fast(key, before .. key .. after .. ':queue', fence, clock, parts[arg + 1], parts[arg + 2])
        end
        answer = answer or slow_path(code, unpack(parts, arg + 1, next_at - 1))
      end
      number = number + 1
      answers[number] = answer
    end
    code = parts[next_at]
  end
end

repeat
  local done, problem = pcall(carry_out_all)
  if not done then
    seen, number = nil, number + 1
    answers[number] = { FAILED, type(problem) == 'table' and problem.err or tostring(problem) }
  end
until done
for _, semaphore in pairs(semaphores) do
  close_state(semaphore)
end
for _, fence in pairs(fences) do
  if fence.unwritten then call('SET', fence.key, fence.unwritten, 'KEEPTTL') end
end
return answers
