-- The next token of a namespace.
--#include token.lua
local time = redis.call('TIME')
local token = draw_token(KEYS[1], 0, time[1] * 1000000 + time[2])
return token or { 4, KEYS[1], redis.call('GET', KEYS[1]) or '' }
