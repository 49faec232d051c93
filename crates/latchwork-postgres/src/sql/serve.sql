  -- Included in the functions: gives the key to those in line whose process listens, and tells the others who
  -- would be admitted, once each. a_me is not told: it asks by itself. Appends to `tell` a process and a message
  -- each.
  IF r.crowd AND a_serves AND (r.closed IS NULL OR r.closed <= t) AND r.claim IS NULL THEN
    seen := 0; reached := -9223372036854775807;
    -- Mostly it is one.
    LOOP
      EXIT WHEN r.claim IS NOT NULL;
      SELECT * INTO w FROM @line@ p WHERE p.k = a_k AND p.pos > reached AND p.held IS NULL AND p.fifo AND p.ends > t
        AND (p.mode <> 0 OR p.claim = a_me OR p.process IS NULL OR p.process <> ALL (silent)) ORDER BY p.pos LIMIT 1;
      EXIT WHEN NOT FOUND OR w.mode <> 2 AND seen > 0 OR NOT (@suits:w@);
      reached := w.pos;
      IF w.claim <> a_me AND w.process IS NOT NULL AND w.process = ANY (heard) THEN
        NULL;
      ELSIF w.claim <> a_me AND w.process IS NOT NULL AND NOT pg_try_advisory_xact_lock_shared(@class@, w.process) THEN
        -- Its process holds that lock on the connection on which it listens.
        heard := heard || w.process;
      ELSIF w.claim <> a_me AND w.process IS NOT NULL THEN
        -- Nobody hears it: it keeps its place, and looks when it is back. So do others of its process that want the key
        -- alone. Whether others fit, or stop those behind them, is asked for each.
        silent := silent || w.process;
        CONTINUE;
      ELSE
        seen := seen + 1;
        CONTINUE;
      END IF;
      r.token := greatest(r.token + 1, (date_part('epoch', t) * 1000000)::bigint);
      r.open := greatest(r.open, t);
      IF w.mode < 2 AND w.take <> 2 THEN
        DELETE FROM @line@ p WHERE p.k = a_k AND p.pos = w.pos;
        r.claim := w.claim; r.mode := w.mode; r.holder := w.holder; r.asked := w.asked;
        r.ends := t + w.probation * interval '1 microsecond';
      ELSE
        UPDATE @line@ p SET held = r.token, ends = t + w.probation * interval '1 microsecond'
        WHERE p.k = a_k AND p.pos = w.pos;
        IF members > 0 AND lim <> w.lim THEN
          UPDATE @line@ p SET lim = w.lim WHERE p.k = a_k AND p.held IS NOT NULL;
        END IF;
        lim := w.lim;
        members := members + 1; taken := taken + w.take; kind := least(kind, w.mode);
      END IF;
      durable := true;
      tell := tell || w.process::text || concat_ws(' ', 'g', w.claim, r.token, w.probation, w.word,
        greatest(0, (date_part('epoch', t - w.tried) * 1000000)::bigint));
    END LOOP;
    -- Those who only left a mark look when nobody in line is in their way.
    IF r.claim IS NULL AND waits THEN
      IF NOT EXISTS (SELECT FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.mode <> 2) THEN
        others := EXISTS (SELECT FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t);
        FOR w IN SELECT * FROM @line@ p
          WHERE p.k = a_k AND p.held IS NULL AND NOT p.fifo AND NOT p.told AND p.ends > t ORDER BY p.pos LOOP
          IF w.claim <> a_me AND (w.mode = 2 OR NOT others) AND (@fits:w.mode,w.take,w.lim@) THEN
            UPDATE @line@ p SET told = true WHERE p.k = a_k AND p.pos = w.pos;
            IF w.process IS NOT NULL THEN
              tell := tell || w.process::text || concat_ws(' ', 'l', w.claim, 0);
            END IF;
          END IF;
        END LOOP;
      END IF;
    END IF;
  END IF;
  -- If those in front do not come, and nobody can tell them, the next one does.
  IF r.crowd AND a_serves AND durable IS NOT TRUE AND r.claim IS NULL AND (r.closed IS NULL OR r.closed <= t) THEN
    SELECT * INTO w FROM @front@ f WHERE f.process IS NOT NULL AND f.claim <> a_me ORDER BY f.pos LIMIT 1;
    IF FOUND AND NOT w.told THEN
      UPDATE @line@ p SET told = true WHERE p.k = a_k AND p.pos = w.pos;
      SELECT count(*) INTO seen FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t AND p.pos < w.pos;
      tell := tell || w.process::text || concat_ws(' ', 'l', w.claim, seen * @patience_us@ + 1000);
    END IF;
  END IF;
  -- If who was given the key has stopped, the next one comes when its probation is over.
  IF durable AND r.claim IS NOT NULL AND r.claim <> a_me AND waits THEN
    SELECT * INTO w FROM @front@ f WHERE f.process IS NOT NULL ORDER BY f.pos LIMIT 1;
    IF FOUND THEN
      tell := tell || w.process::text || concat_ws(' ', 'l', w.claim,
        (date_part('epoch', r.ends - t) * 1000000)::bigint + 1000);
    END IF;
  END IF;
