-- The next token of a namespace.
--#include token.lua
local time = redis.call('TIME')
KEYS[2] = KEYS[1]
local token = draw_token(0, time[1] * 1000000 + time[2])
return token or { 4, KEYS[1], redis.call('GET', KEYS[1]) or '' }
