-- Now, in microseconds as text and as a number, and in milliseconds.

local time = redis.call('TIME')
local now, now_us = time[1] .. string.sub('00000' .. time[2], -6), time[1] * 1e6 + time[2]
local now_ms = math.floor(now_us / 1000)

