-- The slow paths of a batch, by the codes of their operations. Those of locks and those of semaphores are created when the first
-- of them is needed.

local of_locks, of_semaphores

return function(code, key, queue, fence, clock, ...)
  -- It may grant a lock under a later token.
  fence.shared = false
  if code == ACQUIRE_PERMITS or code == RENEW_PERMITS or code == RELEASE_PERMITS then
    of_semaphores = of_semaphores or semaphore_operations()
    return of_semaphores(code, key, queue, fence, clock, ...)
  end
  of_locks = of_locks or lock_operations()
  return of_locks(code, key, queue, fence, clock, ...)
end
