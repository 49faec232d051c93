-- From here on the keys are those of the script.
KEYS[1], KEYS[guard.keys] = KEYS[guard.keys], nil
