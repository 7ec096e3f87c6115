-- The keys of a call (keys.rs).
--
-- KEYS[1]  lock or semaphore
-- KEYS[2]  fence. Absent for locks with the default prefix: DEFAULT_FENCE
-- KEYS[3]  queue, from which the other names are derived. Absent if the first key, in braces, is its hash tag.
--
-- Each key that is named costs the server as much as a third of a command.

local function queue_of(keys) return keys[3] or '{' .. keys[1] .. '}:queue' end

-- What an operation needs besides: the time, the fence, and the queue.
local function prepare() return read_clock(), open_fence(KEYS[2] or DEFAULT_FENCE), queue_of(KEYS) end
