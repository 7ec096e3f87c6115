-- The slow paths of a batch. Those of locks and those of semaphores are created when the first of them is needed.

local function lock_operations()
  DEFINITIONS
  return lock_at, {
    [ACQUIRE] = acquire, [RELEASE] = release, [RENEW_OWNED] = renew_owned, [SETTLE] = settle,
  }
end

local function semaphore_operations()
  DEFINITIONS
  return semaphore_at, {
    [ACQUIRE_PERMITS] = acquire_permits, [RENEW_PERMITS] = renew_permits, [RELEASE_PERMITS] = release_permits,
  }
end

local at_lock, at_semaphore, of_locks, of_semaphores

local function slow_path(code, key, queue, fence, clock, first, ...)
  -- It may grant a lock under a later token.
  fence.shared = false
  if code == ACQUIRE_PERMITS or code == RENEW_PERMITS or code == RELEASE_PERMITS then
    if not of_semaphores then at_semaphore, of_semaphores = semaphore_operations() end
    return of_semaphores[code](at_semaphore(key, queue, first, fence, clock), ...)
  end
  if not of_locks then at_lock, of_locks = lock_operations() end
  return of_locks[code](at_lock(key, queue, fence, clock), first, ...)
end
