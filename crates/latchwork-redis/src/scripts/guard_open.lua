-- In quarantine nobody is served. (Spliced into the release script's shortest way.)
is_open = guard.is_open
