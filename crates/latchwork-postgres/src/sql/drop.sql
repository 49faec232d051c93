    SELECT * INTO w FROM @line@ p WHERE p.k = a_k AND p.pos = upgrade;
    IF NOT EXISTS (SELECT FROM @line@ p WHERE p.k = a_k AND p.held IS NOT NULL AND p.claim = @beside:w.holder@) THEN
      DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = upgrade;
      IF mine.pos = upgrade THEN
        mine := NULL;
      END IF;
      r.open := greatest(r.open, t); upgrade := NULL; news := true;
      SELECT min(p.pos) INTO head FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t;
    END IF;
