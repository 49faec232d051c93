//! Functions and operators of others in the schema `public`, where up to version 14 everybody may make some. The server
//! prefers one that fits the types of its arguments exactly to one of its own that fits after a conversion.

use crate::common::*;
use latchwork_services::{PgBouncer, PostgresOptions, PostgresServer};
use latchwork_store::{Backend, Linger, Mode, Query};

/// Makes one for every name that Latchwork uses and for all types of its arguments, unless the server has exactly that.
const TRAPS: &str = r"
DO $traps$
DECLARE
  kinds regtype[] := '{smallint,integer,bigint,double precision,text,name,oid,regclass,uuid,bytea,timestamptz,interval,boolean,text[],bytea[],uuid[],bigint[],smallint[],integer[]}';
  few regtype[] := '{integer,bigint,text,name,boolean,oid}';
  names text[] := '{set_config,clock_timestamp,date_part,pg_notify,hashtext,encode,pg_try_advisory_xact_lock,pg_try_advisory_xact_lock_shared,
    pg_advisory_xact_lock,pg_advisory_lock,unnest,lpad,to_hex,current_setting,to_regclass,obj_description,gen_random_uuid,left,pg_walfile_name,
    count,sum,max,min,bool_and,bool_or,array_agg,string_agg,pg_size_pretty,pg_total_relation_size,has_table_privilege,date_trunc,now,
    pg_backend_pid,pg_is_in_recovery,array_length,generate_series,array_append,array_cat,current_database,cardinality}';
  op text; a regtype; b regtype; f record; made integer := 0;
  trap text := 'LANGUAGE plpgsql AS $b$BEGIN PERFORM nextval(''public.trapped''); RAISE EXCEPTION ''a trap''; END$b$';
BEGIN
  -- A number that was drawn stays drawn, whatever becomes of the statement.
  CREATE SEQUENCE public.trapped;
  FOREACH a IN ARRAY kinds LOOP
    FOREACH b IN ARRAY kinds LOOP
      EXECUTE format('CREATE FUNCTION public.trap(%s, %s) RETURNS %s %s', a, b,
        CASE WHEN 'interval'::regtype IN (a, b) THEN 'interval' ELSE 'double precision' END, trap);
      FOREACH op IN ARRAY '{*,+,-,/,=,<>,<,<=,>,>=,||}'::text[] LOOP
        IF NOT EXISTS (SELECT FROM pg_operator o WHERE o.oprname = op AND o.oprleft = a AND o.oprright = b
          AND o.oprnamespace = 'pg_catalog'::regnamespace) THEN
          EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.trap)', op, a, b);
          made := made + 1;
        END IF;
      END LOOP;
    END LOOP;
  END LOOP;
  FOR f IN
    SELECT p.proname, x.args FROM (SELECT DISTINCT q.proname, q.pronargs FROM pg_proc q
      WHERE q.proname = ANY (names) AND q.pronamespace = 'pg_catalog'::regnamespace) p,
    LATERAL (
      SELECT ARRAY[u]::regtype[] AS args FROM unnest(kinds) u WHERE p.pronargs = 1
      UNION ALL SELECT ARRAY[u, v] FROM unnest(kinds) u, unnest(kinds) v WHERE p.pronargs = 2
      UNION ALL SELECT ARRAY[u, v, w] FROM unnest(few) u, unnest(few) v, unnest(few) w WHERE p.pronargs = 3) x
    WHERE NOT EXISTS (SELECT FROM pg_proc q WHERE q.proname = p.proname AND q.pronamespace = 'pg_catalog'::regnamespace
      AND q.proargtypes::oid[] = x.args::oid[])
  LOOP
    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS text %s', f.proname, array_to_string(f.args, ','), trap);
    made := made + 1;
  END LOOP;
  EXECUTE 'CREATE FUNCTION public.concat_ws(text, text, uuid, bigint, bigint, uuid, bigint) RETURNS text ' || trap;
  EXECUTE 'CREATE FUNCTION public.concat_ws(text, text, uuid, bigint) RETURNS text ' || trap;
  EXECUTE 'CREATE FUNCTION public.concat_ws(text, text, uuid, integer) RETURNS text ' || trap;
  EXECUTE 'CREATE FUNCTION public.concat_ws(text, text, text, text) RETURNS text ' || trap;
  IF made < 5000 THEN
    RAISE EXCEPTION 'few traps: %', made;
  END IF;
END $traps$";

/// What a client does, and what an operator does.
async fn uses(server: &PostgresServer, url: &str) {
    prepare(url).await.unwrap();
    let (one, two) = (bare(url).await, bare(url).await);
    for mode in [Mode::Exclusive, Mode::Read, Mode::Permits { take: 1, of: 2 }] {
        let held = claim(&format!("{mode:?}")).with(|it| {
            it.ttl = 60 * SEC;
            it.mode = mode;
        });
        one.granted(&held).await;
        assert!(one.held(&held).await);
        let waits = like(&held).with(|it| {
            it.mode = if mode == Mode::Read { Mode::Write } else { mode };
            if let Mode::Permits { take, .. } = &mut it.mode {
                *take = 2;
            }
        });
        let last = like(&waits);
        two.blocked(&waits).await;
        let release = async {
            tokio::time::sleep(300 * MS).await;
            two.blocked(&last).await;
            one.released(&held).await
        };
        let (_, released) = tokio::join!(two.acquired(&waits), release);
        assert_eq!(released, latchwork_store::Released::Yes);
        let next = async {
            two.acquired(&last).await;
            two.released(&last).await;
        };
        tokio::join!(next, two.released(&waits));
    }
    // Statements for several keys: new ones, and the same again.
    let many: Vec<_> = (0..100).map(|n| claim(&format!("many{n}"))).collect();
    for _ in 0..2 {
        futures_util::future::join_all(many.iter().map(|claim| one.granted(claim))).await;
        futures_util::future::join_all(many.iter().map(|claim| one.released(claim))).await;
    }
    let once = claim("once");
    one.granted(&once).await;
    one.release(&once, Linger::For(60 * SEC)).await.unwrap();
    one.release(&once, Linger::End).await.unwrap();
    one.granted(&claim("left")).await;
    assert_eq!(one.show("left").await.holders.len(), 1);
    assert_eq!(one.inspect(&Query::Prefix("".into())).await.unwrap().len(), 1);
    let report = examine(url).await;
    assert!(report.is_fit(), "{report:?}");
    for part in ["clock", "encryption", "locks", "vacuum", "rights", "guard"] {
        let found = report.find(part).unwrap_or_else(|| panic!("{part}: {report:?}"));
        assert!(!found.found.contains("cannot"), "{report:?}");
    }
    assert_eq!(server.psql("SELECT is_called FROM trapped").unwrap(), "f");
    let log = std::fs::read_to_string(server.folder().join("log")).unwrap();
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("ERROR:")).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for statement in ["Takes free keys", "Ends claims", "Starts the ttl of claims"] {
        assert!(log.contains(statement), "{statement}");
    }
}

fn with_traps() -> PostgresServer {
    let server =
        PostgresServer::start_with(&PostgresOptions::new().setting("log_statement=all")).unwrap();
    server.psql(TRAPS).unwrap();
    server
}

/// H178: a user makes functions and operators in `public` that fit better than the server's.
#[test]
fn h178_functions_of_others_are_never_called() {
    let server = with_traps();
    run(uses(&server, &format!("{}?guard=true", server.url())));
}

/// H178: no session is its own there, and each statement has the path of the role.
#[test]
fn h178_functions_of_others_are_never_called_behind_a_pooler() {
    let server = with_traps();
    let bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(uses(&server, &format!("{}?guard=true", bouncer.url())));
}
