-- The fast paths of semaphores in a batch. The slow path finds by itself whatever goes wrong in them.

-- The semaphores whose state has been read, by key.
local semaphores = {}

local function permits_fast(code, key, before, after, fence, clock, kind, ...)
  local semaphore, path = semaphores[key], nil
  if code == ACQUIRE_PERMITS then
    path = acquire_permits_fast
  elseif code == RELEASE_PERMITS then
    path = release_permits_fast
  end
  if path and not (semaphore and semaphore.kind == kind) then
    if semaphore then close_state(semaphore) end
    semaphore = semaphore_at(key, before .. key .. after .. ':queue', kind, fence, clock)
    semaphore.grants_with_answers = true
    semaphores[key] = semaphore
  end
  if path then
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

return permits_fast, close_semaphores
