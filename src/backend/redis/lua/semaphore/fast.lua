-- The fast paths of semaphores in a batch. The slow path finds by itself whatever goes wrong in them.

-- The semaphores whose state has been read, by key.
local semaphores = {}

local function permits_fast(code, key, before, after, fence, clock, kind, ...)
  local semaphore = semaphores[key]
  if code ~= RENEW_PERMITS then
    if not (semaphore and semaphore.kind == kind) then
      if semaphore then close_state(semaphore) end
      semaphore = semaphore_at(key, before .. key .. after .. ':queue', kind, fence, clock)
      semaphore.grants_with_answers = true
      semaphores[key] = semaphore
    end
    local path = code == ACQUIRE_PERMITS and acquire_permits_fast or release_permits_fast
    local done, answer, grant = pcall(path, semaphore, ...)
    if done and answer then return grant and { WITH_GRANT, answer, grant } or answer end
  end
  -- The slow path reads the state.
  if semaphore then close_state(semaphore) end
  semaphores[key] = nil
end

local function close_semaphores()
  for _, semaphore in pairs(semaphores) do
    close_state(semaphore)
  end
end
