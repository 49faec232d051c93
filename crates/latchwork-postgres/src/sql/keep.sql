-- Starts the ttl of claims anew, one after the other, each under the lock of its key's row. `o_state` is
-- h held, l lost, or u not known: the row is locked by somebody else.
CREATE OR REPLACE FUNCTION @keep@(
  a_k bytea[], a_claim uuid[], a_ttl bigint[], a_floor bigint[], a_holder bytea[], a_wait boolean, a_durable text
) RETURNS TABLE (o_n bigint, o_state text, o_token bigint, o_time bigint) LANGUAGE plpgsql AS @body@
-- @made@
DECLARE
  c record;
  r @locks@;
  t timestamptz;
  given bigint;
BEGIN
  IF current_setting('latchwork.keep_@class@', true) IS DISTINCT FROM '@revision@' THEN
    PERFORM @rehearse@('keep');
  END IF;
  PERFORM set_config('synchronous_commit', a_durable, true);
  FOR c IN
    SELECT u.* FROM unnest(a_k, a_claim, a_ttl, a_floor, a_holder) WITH ORDINALITY AS u (k, claim, ttl, floor, holder, n)
    ORDER BY u.k
  LOOP
    o_n := c.n; o_state := 'l'; o_token := NULL;
    IF a_wait THEN
      SELECT * INTO r FROM @locks@ l WHERE l.k = c.k FOR NO KEY UPDATE;
    ELSE
      SELECT * INTO r FROM @locks@ l WHERE l.k = c.k FOR NO KEY UPDATE SKIP LOCKED;
      IF NOT FOUND AND EXISTS (SELECT FROM @locks@ l WHERE l.k = c.k) THEN
        o_state := 'u';
      END IF;
    END IF;
    t := clock_timestamp();
    IF r.k IS NOT NULL AND r.claim = c.claim AND r.ends > t THEN
      o_token := greatest(r.token, c.floor);
      UPDATE @locks@ l SET ends = t + c.ttl * interval '1 microsecond', token = o_token,
        holder = coalesce(c.holder, l.holder) WHERE l.k = c.k;
      o_state := 'h';
    ELSIF r.crowd THEN
      UPDATE @line@ p SET ends = t + c.ttl * interval '1 microsecond', held = greatest(p.held, c.floor),
        holder = coalesce(c.holder, p.holder)
      WHERE p.k = c.k AND p.pos = (SELECT x.pos FROM @row:c.claim@ x WHERE x.k = c.k)
        AND p.held IS NOT NULL AND p.ends > t RETURNING p.held INTO given;
      IF FOUND THEN
        o_token := given; o_state := 'h';
        IF given > r.token THEN
          UPDATE @locks@ l SET token = given WHERE l.k = c.k;
        END IF;
      END IF;
    END IF;
    o_time := (date_part('epoch', t) * 1000000)::bigint;
    RETURN NEXT;
  END LOOP;
END @body@;
