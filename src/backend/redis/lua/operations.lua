-- The slow paths of a batch, by the codes of their operations. To create a function costs time, so those of locks and those of
-- semaphores are created when the first of them is needed.

local of_locks, of_semaphores

return function(code, ...)
  if code == ACQUIRE_PERMITS or code == RENEW_PERMITS or code == RELEASE_PERMITS then
    of_semaphores = of_semaphores or semaphore_operations()
    return of_semaphores(code, ...)
  end
  of_locks = of_locks or lock_operations()
  return of_locks(code, ...)
end
