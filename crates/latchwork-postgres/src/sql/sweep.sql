  -- Included in the functions: drops what has ended, and counts who holds the key and how
  -- many rows of the line are left (`lined`). Needs a_k, r (the locked
  -- row) and t (read after the lock).
  IF r.closed <= t THEN
    r.closed_by := NULL;
  END IF;
  IF r.claim IS NOT NULL AND r.ends <= t THEN
    r.open := greatest(r.open, r.ends);
    r.claim := NULL; r.holder := NULL;
  END IF;
  IF r.crowd THEN
    -- Mostly nothing has ended, and one statement says so.
    FOR n IN 1..2 LOOP
      SELECT count(*), count(p.held), coalesce(sum(p.take) FILTER (WHERE p.held IS NOT NULL), 0),
        max(p.mode) FILTER (WHERE p.held IS NOT NULL), coalesce(bool_or(p.ends <= t), false),
        count(*) FILTER (WHERE p.held IS NULL AND p.fifo), count(*) FILTER (WHERE p.claim = a_me), max(p.pos)
      INTO lined, members, taken, kind, ended, queued, here, last FROM @line@ p WHERE p.k = a_k;
      IF n = 1 AND lined = 0 AND a_nonce IS NOT NULL THEN
        -- Somebody has emptied the line alone, and who shared a key is not known any more: the nonce counts no longer.
        UPDATE @alive@ SET nonce = gen_random_uuid();
        UPDATE @locks@ l SET crowd = false WHERE l.k IN (
          SELECT c.k FROM @locks@ c WHERE c.crowd AND NOT EXISTS (SELECT FROM @line@ p WHERE p.k = c.k)
          FOR NO KEY UPDATE SKIP LOCKED);
        emptied := true;
      END IF;
      EXIT WHEN NOT ended;
      news := true;
      WITH ended AS (DELETE FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL AND p.ends <= t RETURNING p.ends)
      SELECT greatest(r.open, max(ended.ends)) INTO r.open FROM ended;
      SELECT min(p.pos) INTO head FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
      WITH ended AS (DELETE FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.ends <= t RETURNING p.*)
      SELECT greatest(r.open, max(ended.ends) FILTER (WHERE ended.fifo AND (head IS NULL OR ended.pos < head)))
      INTO r.open FROM ended;
    END LOOP;
  ELSE
    lined := 0; members := 0; taken := 0; queued := 0; here := 0;
  END IF;
