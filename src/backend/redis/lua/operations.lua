-- The operations of a batch by their codes: the slow paths.

local function of_lock(operation)
  return function(key, queue, fence, clock, ...)
    return operation(lock_at(key, queue, fence, clock), ...)
  end
end

local function of_semaphore(operation)
  return function(key, queue, fence, clock, kind, ...)
    return operation(semaphore_at(key, queue, kind, fence, clock), ...)
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
