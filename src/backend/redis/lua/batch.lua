-- Carries out many operations in one call, in the order given. Creating a function costs time, whether it is used or
-- not, so the fast paths of semaphores, those of locks with waiters, and the slow paths are created when an operation
-- needs them.
--
-- ARGV[1]  the operations one after another in MessagePack, since every key and argument of a call costs as much as a command
--          here: for each, its code, its key, the number of its arguments, and its arguments. ACQUIRE, RENEW and
--          RELEASE_WITH_GAPS have two and RELEASE has one, so their number is left out; a request for a lock with more is
--          ACQUIRE_WITH. A key that is not itself the hash tag of its other keys follows true and what these start with; false
--          stands for the key of the previous operation. USE_FENCE and the name of a fence give the prefix of the operations
--          that follow.
--
-- Returns  the operations' answers in the same order, in MessagePack as well, which the client reads in a third of the time;
--          {FAILED, text} for one that failed; {WITH_GRANT, answer, grant} for one that granted something to another request of
--          the same client, with the message that would otherwise be published to it
--
-- An operation that fails, for instance because something else is stored under its key, does not affect the others.

local fence, close_semaphores, number, next_at = nil, nil, 0, 1
-- The key of the current operation, and what precedes and follows it in the names of the other keys (keys.rs).
local key, before, after

-- Starts with the operation at `next_at`, and ends early if a slow path fails.
local function carry_out_all(parts, answers, fences)
  local clock, code, seen = clock, parts[next_at], nil
  local acquire_fast, release_fast, renew, waiting_paths, wait_fast, release_waited_fast, permits_fast, slow_path
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
      if code == ACQUIRE_PERMITS or code == RELEASE_PERMITS or code == RENEW_PERMITS then
        next_at, arg = arg + 1 + parts[arg], arg + 1
        if not permits_fast and code ~= RENEW_PERMITS then permits_fast, close_semaphores = semaphore_paths() end
        answer = permits_fast and permits_fast(code, key, before, after, fence, clock, unpack(parts, arg, next_at - 1))
      else
        if not acquire_fast then acquire_fast, release_fast, renew, waiting_paths = lock_paths() end
        if code == ACQUIRE then
          next_at = arg + 2
          local queue, id, ttl_ms = before .. key .. after .. ':queue', parts[arg], parts[arg + 1]
          answer = acquire_fast(key, queue, fence, clock, id, ttl_ms)
          if not answer then
            if not wait_fast then wait_fast, release_waited_fast = waiting_paths() end
            answer, seen = wait_fast(seen, key, queue, clock, id, ttl_ms)
          end
        elseif code == RELEASE or code == RELEASE_WITH_GAPS then
          next_at, seen = arg + 1, nil
          local id, is_gap_due = parts[arg], false
          if code == RELEASE_WITH_GAPS then
            next_at = arg + 2
            -- As in is_gap_due.lua.
            local granted = tonumber(sub(call('GET', key) or '', #id + 2, #id + 17)) or clock.us
            is_gap_due = clock.us - granted > clock.us % (parts[arg + 1] * GAP_PERIOD)
          end
          if not is_gap_due then
            local released, value = release_fast(key, fence, id)
            answer = released
            if not released then
              if not wait_fast then wait_fast, release_waited_fast = waiting_paths() end
              answer = release_waited_fast(key, value, before .. key .. after .. ':queue', fence, clock, id)
            end
          end
        elseif code == RENEW then
          next_at = arg + 2
          answer = renew(key, parts[arg], parts[arg + 1])
        else
          next_at, arg = arg + 1 + parts[arg], arg + 1
          if code == ACQUIRE_WITH then
            code = ACQUIRE
            answer = acquire_fast(key, before .. key .. after .. ':queue', fence, clock, parts[arg], parts[arg + 1])
          end
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
