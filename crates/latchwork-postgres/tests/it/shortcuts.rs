//! The usual release and the usual place in a queue are one statement each. They do what the long way does.

use crate::common::*;

/// Plays random queues on two keys. The second one has a mark of a closing that is over, which the shortcuts do not
/// take. All lengths are whole tens of seconds, and a second of difference is none.
const PLAY: &str = r"
DO $play$
<<play>>
DECLARE
  b timestamptz; n integer; i integer; k bytea; took integer := 0; a text; e timestamptz;
  said text[]; nth integer; mode smallint; held boolean; old bigint; me uuid; fresh uuid;
  stands boolean; word text;
BEGIN
  PERFORM setseed(0.17);
  FOR i IN 1..800 LOOP
    TRUNCATE latchwork, latchwork_line;
    b := clock_timestamp(); said := '{}'; me := md5('me')::uuid; fresh := md5('fresh')::uuid;
    mode := (random() < 0.3)::integer; held := random() < 0.95; old := CASE WHEN random() < 0.5 THEN 5 ELSE 4000000000000000 END;
    stands := random() < 0.4; word := md5(random()::text);
    e := b + CASE WHEN random() < 0.9 THEN 40 ELSE -10 END * interval '1 second';
    INSERT INTO latchwork (k, token, claim, mode, ends, asked, crowd, closed, open, holder)
    SELECT q.k, old, CASE WHEN held THEN CASE WHEN stands THEN md5('other')::uuid ELSE me END END, mode, e,
      b - interval '100 s', true, 'epoch', b - interval '50 s', '\x61' FROM (VALUES ('\x01'::bytea), ('\x02')) q(k);
    UPDATE latchwork l SET closed_by = '\x62' WHERE l.k = '\x02';
    n := 1 + (random() * 4)::integer;
    FOR nth IN 1..n LOOP
      INSERT INTO latchwork_line
      SELECT q.k, nth * 3, CASE WHEN x.c < 0.05 AND nth = 2 THEN fresh ELSE md5(nth::text)::uuid END,
        CASE WHEN x.m < 0.9 THEN mode WHEN x.m < 0.95 THEN 9 ELSE 2 * mode END, 1, 0, x.f < 0.9 AND x.m NOT BETWEEN 0.9 AND 0.95, NULL,
        b + CASE WHEN x.e < 0.92 THEN 30 ELSE -20 END * interval '1 second', b - interval '90 s', b - interval '70 s', 30000000,
        20000000, md5('w' || nth)::uuid, CASE WHEN x.p < 0.8 THEN 7 WHEN x.p < 0.9 THEN 8 END, x.t < 0.3, '\x63'
      FROM (SELECT random() c, random() m, random() f, random() e, random() p, random() t OFFSET 0) x,
        (VALUES ('\x01'::bytea), ('\x02')) q(k);
    END LOOP;
    FOREACH k IN ARRAY ARRAY['\x01'::bytea, '\x02'] LOOP
      IF stands THEN
        SELECT concat_ws(' ', s.what, CASE WHEN s.what <> 'g' THEN s.given END, round(s.retry / 1e6), s.ahead, s.whom, s.tell) INTO a
        FROM latchwork_stand(k, NULL, fresh, mode, 1, 0, true, true, 30000000, 0, '\x64', 20000000, word::uuid, 7, NULL, 'on') s;
      ELSE
        SELECT concat_ws(' ', s.released, (SELECT string_agg(regexp_replace(x, '^(g \S+) \d+ (.*) \d+$', '\1 \2'), ',') FROM unnest(s.tell) x))
        INTO a FROM latchwork_leave(k, NULL, me, 0, '\x61', NULL, 0, 'on') s;
      END IF;
      -- What has ended, and the bit that says so, may stay for a later call.
      SELECT concat_ws(' ', a, CASE WHEN l.token > 3e15 THEN l.token ELSE round((l.token - extract(epoch FROM b) * 1e6) / 1e7) END,
        l.claim, l.mode, round(extract(epoch FROM l.ends - b) / 10), round(extract(epoch FROM l.asked - b) / 10), nullif(l.closed_by, '\x62'),
        round(extract(epoch FROM l.open - b) / 10), l.holder,
        l.crowd = EXISTS (SELECT FROM latchwork_line p WHERE p.k = l.k))
      INTO a FROM latchwork l WHERE l.k = play.k;
      SELECT concat_ws(' | ', a, string_agg(concat_ws(' ', p.pos, p.claim, p.mode, p.take, p.lim, p.fifo, p.held IS NULL, round(extract(epoch FROM p.ends - b) / 10),
        round(extract(epoch FROM p.asked - b) / 10), round(extract(epoch FROM p.tried - b) / 10), p.ttl, p.probation, p.word, p.process, p.told, p.holder), ', ' ORDER BY p.pos))
      INTO a FROM latchwork_line p WHERE p.k = play.k AND p.ends > b;
      said := said || a;
    END LOOP;
    IF clock_timestamp() < b + interval '400 ms' AND said[1] <> said[2] THEN
      RAISE EXCEPTION 'round %: % <> %', i, said[1], said[2];
    END IF;
    took := took + (EXISTS (SELECT FROM latchwork l WHERE l.k = '\x01' AND l.claim IS NOT NULL AND l.claim <> me))::integer;
  END LOOP;
  IF took < 300 THEN
    RAISE EXCEPTION 'few shortcuts: %', took;
  END IF;
END $play$";

#[test]
fn the_shortcuts_of_a_busy_key_do_what_the_long_way_does() {
    let server = server();
    run(async {
        let listener = listening(&server).await;
        server.psql(PLAY).unwrap();
        drop(listener);
    });
}
