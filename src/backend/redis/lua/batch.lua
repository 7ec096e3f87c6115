-- Carries out many operations in one call, in the order given. Creating a function costs time, whether it is used or
-- not, so the fast paths of semaphores, those of locks with waiters, and the slow paths are created when an operation
-- needs them.
--
-- ARGV[1]  the operations in MessagePack, since every key and argument of a call costs as much as a command here: of
--          each, its code, its key, the number of its arguments, and they. A key that is not itself the hash tag of its
--          other keys follows true and what these start with; false stands for the key of the previous operation.
--          USE_FENCE and the name of a fence give the prefix of the operations that follow.
--
-- Returns  the operations' answers in the same order, in MessagePack as well; {FAILED, text} for one that failed, which
--          does not affect the others; {WITH_GRANT, answer, grant} for one that granted something to another request of
--          the same client, with the message that would otherwise be published to it

local clock = read_clock()

OTHERWISE

local function lock_paths()
  DEFINITIONS
  return acquire_fast, release_fast, renew
end

local function waiting_paths()
  DEFINITIONS
  return wait_fast, hand_over_fast
end

local function semaphore_paths()
  DEFINITIONS
  return permits_fast, close_semaphores
end

local function slow_paths()
  DEFINITIONS
  -- The first two for both kinds of resources.
  return join_queue and hand_over and slow_path
end

OTHERWISE

local fence, close_semaphores, number, next_at = nil, nil, 0, 1
-- The key of the current operation, and what precedes and follows it in the names of the other keys (keys.rs).
local key, before, after

-- Starts with the operation at `next_at`, and ends early if a slow path fails.
local function carry_out_all(parts, answers, fences)
  local clock, code, seen = clock, parts[next_at], nil
  local acquire_fast, release_fast, renew, wait_fast, hand_over_fast, permits_fast, slow_path
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
      local answer, args = nil, parts[arg]
      arg, next_at = arg + 1, arg + 1 + args
      if code == ACQUIRE_PERMITS or code == RELEASE_PERMITS or code == RENEW_PERMITS then
        if not permits_fast and code ~= RENEW_PERMITS then permits_fast, close_semaphores = semaphore_paths() end
        answer = permits_fast and permits_fast(code, key, before, after, fence, clock, unpack(parts, arg, next_at - 1))
      else
        if not acquire_fast then acquire_fast, release_fast, renew = lock_paths() end
        local id, ttl_ms = parts[arg], args > 1 and parts[arg + 1] or DEFAULT_TTL_MS
        if code == ACQUIRE then
          local queue = before .. key .. after .. ':queue'
          if args < 6 then answer = acquire_fast(key, queue, fence, clock, id, ttl_ms, args == 5 and parts[arg + 4]) end
          if not answer and args <= 2 then
            if not wait_fast then wait_fast, hand_over_fast = waiting_paths() end
            answer, seen = wait_fast(seen, key, queue, clock, id, ttl_ms)
          end
        elseif code == RELEASE then
          seen = nil
          local value, is_due
          answer, value, is_due = release_fast(key, fence, clock, id, args == 2 and ttl_ms)
          if not answer and not is_due then
            if not wait_fast then wait_fast, hand_over_fast = waiting_paths() end
            local stem, done = before .. key .. after, nil
            done, answer = pcall(hand_over_fast, key, value, stem .. ':queue', stem .. ':waiters', fence, clock, id)
            answer = done and answer
          end
        elseif code == RENEW then
          answer = renew(key, id, ttl_ms)
        end
      end
      if not answer then
        -- The queue used by the previous operations may change.
        seen = nil
        slow_path = slow_path or slow_paths()
        answer = slow_path(code, key, before .. key .. after .. ':queue', fence, clock, unpack(parts, arg, next_at - 1))
      end
      number = number + 1
      answers[number] = answer
    end
    code = parts[next_at]
  end
end

local parts, answers, fences = { cmsgpack.unpack(ARGV[1]) }, {}, {}
repeat
  local done, problem = pcall(carry_out_all, parts, answers, fences)
  if not done then
    -- They are read again.
    if close_semaphores then close_semaphores() end
    number = number + 1
    answers[number] = { FAILED, type(problem) == 'table' and problem.err or tostring(problem) }
  end
until done
if close_semaphores then close_semaphores() end
for _, fence in pairs(fences) do
  if fence.unwritten then call('SET', fence.key, fence.unwritten, 'KEEPTTL') end
end
return cmsgpack.pack(answers)
