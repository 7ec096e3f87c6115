-- Stores a label or a note, or removes it if there is none.
--
-- KEYS     its key
-- ARGV[1]  for how many ms it lasts
-- ARGV[2]  the text

if ARGV[2] then return call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1]) end
return call('DEL', KEYS[1])
