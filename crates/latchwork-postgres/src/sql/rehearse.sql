-- Plans the statements of a function for the session, before the function locks the row of a key. Planning takes ten
-- times as long as running them, and others would wait for the row meanwhile. The function is called on keys of its own
-- that no client can name (0xff is not in UTF-8), and all of that is undone.
CREATE OR REPLACE FUNCTION @rehearse@(a_what text) RETURNS void LANGUAGE plpgsql AS @body@
-- @made@
DECLARE
  n CONSTANT text := 'latchwork.' || a_what || '_@class@';
  alone CONSTANT bytea := decode('ff', 'hex') || decode(replace(gen_random_uuid()::text, '-', ''), 'hex');
  shared CONSTANT bytea := alone || decode('00', 'hex');
  c CONSTANT uuid[] := ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid()];
  s CONSTANT bigint := 60000000;
  t CONSTANT timestamptz := clock_timestamp();
BEGIN
  BEGIN
    PERFORM set_config(n, '@revision@', true);
    IF a_what = 'stand' THEN
      PERFORM @stand@(alone, NULL, c[1], 0::smallint, 1, 0, true, false, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(alone, NULL, c[2], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(alone, NULL, c[3], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, 0, NULL, 'off');
      PERFORM @stand@(alone, NULL, c[3], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      UPDATE @locks@ l SET claim = NULL WHERE l.k = alone;
      PERFORM @stand@(alone, NULL, c[3], 0::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(alone, NULL, c[2], 0::smallint, 1, 0, true, false, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(shared, NULL, c[1], 2::smallint, 1, 0, true, false, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(shared, NULL, c[2], 1::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(shared, NULL, c[3], 2::smallint, 1, 0, true, true, s, 0, '', s, NULL, NULL, NULL, 'off');
      PERFORM @stand@(shared, NULL, c[4], 1::smallint, 2, 0, true, true, s, 0,
        convert_to('beside=' || replace(c[1]::text, '-', ''), 'UTF8'), s, NULL, NULL, NULL, 'off');
    ELSE
      INSERT INTO @locks@ (k, token, claim, ends, crowd)
      VALUES (alone, 0, c[1], t + interval '1 minute', true), (shared, 0, NULL, 'epoch', true);
      INSERT INTO @line@ (k, pos, claim, mode, take, lim, fifo, held, ends, asked, tried, ttl, probation, process, holder)
      SELECT p.k, p.pos, p.claim, p.mode, 1, p.lim, true, p.held, t + interval '1 minute', t, t, s, s, p.process, ''
      FROM (VALUES (alone, 1, c[2], 0::smallint, 0, NULL::bigint, 0), (alone, 2, c[3], 0, 0, NULL, NULL), (alone, 3, c[4], 0, 0, NULL, 0),
        (shared, 1, c[1], 3, 2, 1, NULL), (shared, 2, c[2], 3, 2, 2, NULL), (shared, 3, c[3], 3, 2, NULL, NULL),
        (shared, 4, c[4], 3, 2, NULL, 0)) p (k, pos, claim, mode, lim, held, process);
      IF a_what = 'leave' THEN
        PERFORM @leave@(shared, NULL, c[1], -3, '', NULL, 0, 'off');
        PERFORM @leave@(alone, NULL, c[1], 0, '', NULL, 0, 'off');
        PERFORM @leave@(alone, NULL, c[2], 0, '', NULL, 0, 'off');
        PERFORM @leave@(alone, NULL, c[3], 0, '', NULL, 0, 'off');
        PERFORM @leave@(shared, NULL, c[1], 0, '', NULL, 0, 'off');
        PERFORM @leave@(shared, NULL, c[3], 0, '', NULL, 0, 'off');
        PERFORM @leave@(shared, NULL, c[2], 1, '', NULL, 0, 'off');
      ELSE
        PERFORM @keep@(ARRAY[alone, shared], c[1:2], ARRAY[s, s], ARRAY[1::bigint, 1], ARRAY[NULL::bytea, NULL], false, 'off');
        PERFORM @keep@(ARRAY[alone, shared], c[1:2], ARRAY[s, s], ARRAY[1::bigint, 1], ARRAY[NULL::bytea, NULL], true, 'off');
      END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'LW001', MESSAGE = 'nothing of this stays';
  EXCEPTION WHEN SQLSTATE 'LW001' THEN
    NULL;
  END;
  PERFORM set_config(n, '@revision@', false);
END @body@;
