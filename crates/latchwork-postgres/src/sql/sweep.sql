  -- Included in the functions: drops what has ended, and counts who holds the key. Needs a_k, r (the locked
  -- row) and t (read after the lock).
  IF r.closed <= t THEN
    r.closed_by := NULL;
  END IF;
  IF r.claim IS NOT NULL AND r.ends <= t THEN
    r.open := greatest(r.open, r.ends);
    r.claim := NULL; r.holder := NULL;
  END IF;
  members := 0; taken := 0; kind := NULL;
  IF r.crowd THEN
    WITH ended AS (DELETE FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL AND p.ends <= t RETURNING p.ends)
    SELECT greatest(r.open, max(ended.ends)) INTO r.open FROM ended;
    SELECT min(p.pos) INTO head FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
    WITH ended AS (DELETE FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.ends <= t RETURNING p.*)
    SELECT greatest(r.open, max(ended.ends) FILTER (WHERE ended.fifo AND (head IS NULL OR ended.pos < head)))
    INTO r.open FROM ended;
    SELECT count(*), coalesce(sum(p.take), 0), max(p.mode) INTO members, taken, kind
    FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL;
  END IF;
