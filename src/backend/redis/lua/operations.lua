-- The operations of a batch by their codes: the slow paths. `keys` are those of lock.lua and semaphore.lua.

local function of_lock(operation)
  return function(keys, fence, clock, ...)
    return operation(lock_at(keys, fence, clock), ...)
  end
end

local function of_semaphore(operation)
  return function(keys, fence, clock, kind, ...)
    return operation(semaphore_at(keys, kind, fence, clock), ...)
  end
end

return {
  [ACQUIRE] = of_lock(acquire_sole),
  [RELEASE] = of_lock(release),
  [ACQUIRE_OWNED] = of_lock(acquire_owned),
  [RENEW_OWNED] = of_lock(renew_owned),
  [RELEASE_OWNED] = of_lock(release_owned),
  [ACQUIRE_PERMITS] = of_semaphore(acquire_permits),
  [RENEW_PERMITS] = of_semaphore(renew_permits),
  [RELEASE_PERMITS] = of_semaphore(release_permits),
}
