//! The statements, with the names of the tables filled in.
//!
//! A template has `@word@` or `@word:of@` where something is filled in; [`Names::stands_for`] has all words. What comes
//! of it, and so what the server runs, is in `assembled/`, which a test writes and compares.

use std::sync::Arc;

use latchwork_store::kit::record::WAITER_PATIENCE;
use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::names::{class, quoted};
use crate::server::schema::{FUNCTIONS, made, revision};
use crate::server::statement::{Number, Statement, StatementList};

macro_rules! asks {
    ($($ask:ident),* $(,)?) => {
        /// What is asked of the server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Ask {
            $($ask),*
        }

        const ALL: &[Ask] = &[$(Ask::$ask),*];
    };
}

asks! {
    Take,
    TakeAll,
    Free,
    FreeAll,
    Stand,
    Leave,
    LeaveAndTell,
    Renew,
    Keep,
    Look,
    List,
    Notify,
    Tell,
    Heal,
    Sweep,
}

impl From<Ask> for Number {
    fn from(ask: Ask) -> Self {
        Self(ask as usize)
    }
}

/// All statements on one table.
#[derive(Debug)]
pub(crate) struct Statements {
    /// Those of the verbs, each at the number of its [`Ask`].
    list: Arc<StatementList>,
    names: Names,
}

/// What stands for what in the texts.
#[derive(Debug, Clone)]
struct Names {
    schema: String,
    table: String,
    guarded: bool,
    fast: bool,
}

impl Statements {
    pub(crate) fn new(config: &PostgresConfig) -> Self {
        Self::with(Names {
            schema: config.schema.clone(),
            table: config.table.clone(),
            guarded: config.guard,
            fast: config.fast,
        })
    }

    fn with(names: Names) -> Self {
        let statements = |is_pooled: bool| {
            let filled = ALL.iter().map(|ask| {
                let (text, types) = ask.template();
                let text = settings(&text.replace("@which@", ask.which()), is_pooled);
                Statement { text: names.fill(&text), types }
            });
            filled.collect()
        };
        let list = StatementList { own: statements(false), pooled: statements(true) };
        Self { list: Arc::new(list), names }
    }

    /// What a connection has to know.
    pub(crate) fn list(&self) -> Arc<StatementList> {
        self.list.clone()
    }

    /// What makes the tables, then the functions, and what says to people what they are.
    pub(crate) fn schema(&self) -> [String; 3] {
        let functions = [
            include_str!("../sql/no_older.sql"),
            include_str!("../sql/rehearse.sql"),
            include_str!("../sql/stand.sql"),
            include_str!("../sql/leave.sql"),
            include_str!("../sql/keep.sql"),
            include_str!("../sql/heal.sql"),
        ];
        [
            include_str!("../sql/tables.sql"),
            &functions.join("\n"),
            include_str!("../sql/comments.sql"),
        ]
        .map(|text| self.names.fill(text))
    }

    /// A text of the caller's with the names filled in.
    pub(crate) fn fill(&self, text: &str) -> String {
        self.names.fill(text)
    }
}

/// True, and the statement waits for a lock no longer than half of what a verb waits for its answer: there is time for
/// another attempt.
const LIMITED: &str = "set_config('lock_timeout', '900ms', true) IS NOT NULL";

/// As [`LIMITED`], for a try.
const HASTY: &str = "set_config('lock_timeout', '@brief@', true) IS NOT NULL";

/// True, and the functions find what they name and plan as they do in a session of our own ([`crate::server::connect::SESSION`]).
const PLANS: &str = "set_config('search_path', 'pg_catalog, pg_temp', true) IS NOT NULL AND set_config('enable_bitmapscan', 'off', true) IS NOT NULL AND set_config('enable_seqscan', 'off', true) IS NOT NULL \
     AND set_config('plan_cache_mode', 'force_generic_plan', true) IS NOT NULL AND set_config('jit', 'off', true) IS NOT NULL";

/// Fills in what a statement sets by itself, and what a session of a pooler cannot have. What is given to a function is
/// evaluated before it runs.
fn settings(text: &str, is_pooled: bool) -> String {
    let durable = match is_pooled {
        true => format!("CASE WHEN {LIMITED} AND {PLANS} THEN '@durable@' END"),
        false => format!("CASE WHEN {LIMITED} THEN '@durable@' END"),
    };
    text.replace("@limited@", LIMITED)
        .replace("@hasty@", HASTY)
        .replace("@with_settings@", &durable)
}

impl Names {
    fn object(&self, suffix: &str) -> String {
        format!("{}.{}", quoted(&self.schema), quoted(&format!("{}{suffix}", self.table)))
    }

    /// Whether somebody observes a key: an observer holds a shared advisory lock with the number of its key. Until the
    /// change of the key is committed, nobody begins to observe it.
    fn is_observed(&self, key: &str) -> String {
        let class = observers(class(&self.schema, &self.table));
        format!("NOT pg_try_advisory_xact_lock({class}, {})", number(key))
    }

    /// Notifies observers of a key.
    fn notify(&self, key: &str) -> String {
        let channel = seen(class(&self.schema, &self.table));
        format!("pg_notify('{channel}', {}::text)", number(key))
    }

    /// A template with everything filled in, in one pass: a name of the user's is never read as a template.
    fn fill(&self, template: &str) -> String {
        let mut filled = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('@') {
            filled.push_str(before);
            let known = after.split_once('@').and_then(|(word, after)| {
                let (word, of) = word.split_once(':').unwrap_or((word, ""));
                Some((self.stands_for(word, of)?, after))
            });
            match known {
                Some((Filling::Template(text), after)) => {
                    filled.push_str(&self.fill(&text));
                    // A template of its own has its own last line break.
                    let ended = after.strip_prefix('\n').filter(|_| text.ends_with('\n'));
                    rest = ended.unwrap_or(after);
                }
                Some((Filling::Text(text), after)) => {
                    filled.push_str(&text);
                    rest = after;
                }
                None => {
                    filled.push('@');
                    rest = after;
                }
            }
        }
        filled + rest
    }

    /// What `@word@` or `@word:of@` stands for.
    fn stands_for(&self, word: &str, of: &str) -> Option<Filling> {
        let class = || class(&self.schema, &self.table);
        let template = |text: &str| Some(Filling::Template(text.to_owned()));
        let text = |text: String| Some(Filling::Text(text));
        match word {
            "locks" => text(self.object("")),
            "line" | "claims" | "held" | "alive" | "stand" | "leave" | "keep" | "heal"
            | "observe" | "rehearse" | "recheck" => text(self.object(&format!("_{word}"))),
            "index" => text(quoted(&format!("{}_{of}", self.table))),
            "literal" => text(literal(&self.object(if of == "locks" { "" } else { of }))),
            "body" => text(self.quotes()),
            "sweep" => template(include_str!("../sql/sweep.sql")),
            "drop" => template(include_str!("../sql/drop.sql")),
            "serve" => template(include_str!("../sql/serve.sql")),
            "news" => template(include_str!("../sql/news.sql")),
            "fits" => {
                let parts: Vec<&str> = of.split(',').collect();
                text(fits(parts[0], parts[1], parts[2]))
            }
            // The waiter in this row, which may be an upgrade: its read hold is then the only member.
            "suits" => text(format!(
                "CASE WHEN {of}.take = 2 AND {of}.mode = 1 THEN r.claim IS NULL AND members = 1 ELSE {} END",
                fits(&format!("{of}.mode"), &format!("{of}.take"), &format!("{of}.lim"))
            )),
            "beside" => {
                text(format!("convert_from(substring({of} FROM length({of}) - 31), 'UTF8')::uuid"))
            }
            "row" => template(&row_of(of)),
            "front" => template(FRONT),
            "floor" => template("(SELECT f.token FROM @locks@ f WHERE f.k = '')"),
            "guarded" => template(if self.guarded { GUARDED } else { "true" }),
            "rechecked" => template(if self.guarded { RECHECKED } else { "true" }),
            "notify" if of.is_empty() => text(format!(
                "IF {} AND {HAS_ROOM} THEN PERFORM {}; END IF;",
                self.is_observed("a_k"),
                self.notify("a_k")
            )),
            "notify" => text(format!(
                "CASE WHEN {} AND {HAS_ROOM} THEN {} END",
                self.is_observed(of),
                self.notify(of)
            )),
            "us" => template("(date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint"),
            "durable" => template(if self.fast { "off" } else { "on" }),
            "channel" => text(channel(class())),
            "class" => text(class().to_string()),
            "brief" => template(BRIEF),
            // For how long one that could take the key may keep others waiting, as in the kit.
            "patience_us" => text(WAITER_PATIENCE.as_micros().to_string()),
            "patience" => text(format!("interval '{} seconds'", WAITER_PATIENCE.as_secs())),
            "functions" => text(FUNCTIONS.to_string()),
            "revision" => text(revision()),
            "made" => text(made()),
            _ => None,
        }
    }

    /// Quotation marks for the text of a function that are in no name.
    fn quotes(&self) -> String {
        let is_free = |marks: &String| !self.schema.contains(marks) && !self.table.contains(marks);
        let mut all = (0..).map(|n| format!("$body{n}$"));
        all.find(is_free).expect("a name has an end")
    }
}

/// What stands in a template for something.
enum Filling {
    /// Is filled in itself.
    Template(String),
    /// Stays as it is.
    Text(String),
}

/// A text in a statement, whatever the session takes backslashes for.
pub(crate) fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// How long a try waits for the row of its key: what renews or ends a claim waits for longer, so a crowd of tries gives
/// way to it.
const BRIEF: &str = "500ms";
/// The guard's nonce counts, and no quarantine is under way.
const GUARDED: &str = "EXISTS (SELECT FROM @alive@ g, @locks@ s WHERE g.nonce = $8 \
     AND g.opens <= clock_timestamp() AND s.k = '' AND s.claim = $8)";
/// If the row is a new one, the nonce still counts: see heal.sql.
const RECHECKED: &str = "CASE WHEN l.xmax = 0 THEN @recheck@($8) END";

/// How the channels of the processes that wait for keys of a table begin; eight hexadecimal digits follow.
pub(crate) fn channel(class: i32) -> String {
    format!("latchwork_{class:08x}_")
}

/// Where observers of a table are notified.
pub(crate) fn seen(class: i32) -> String {
    format!("latchwork_{class:08x}_seen")
}

/// The class of the advisory locks of observers. Those of the table itself are not negative.
pub(crate) fn observers(class: i32) -> i32 {
    -1 - class
}

/// The server can keep one more notification. If it cannot, a statement with one fails: a session that listens and ends
/// no transaction keeps all of them. An observer looks by its timer as well.
const HAS_ROOM: &str = "pg_notification_queue_usage() < 0.5::float8";

/// The number of a key for observers. Keys may share one: a hint too many.
fn number(key: &str) -> String {
    format!("hashtext(encode({key}, 'hex'))")
}

/// The rows of a claim, of whichever keys. If the key were a condition of the same part, the planner could read all
/// rows of the key: when it knows of one row for each key, both cost the same.
fn row_of(claim: &str) -> String {
    format!("(SELECT * FROM @line@ o WHERE o.claim = {claim} OFFSET 0)")
}

/// The first hundred in the queue. A waiter further behind checks by itself before a message could come.
const FRONT: &str = "(SELECT * FROM @line@ p WHERE p.k = a_k AND p.held IS NULL AND p.fifo AND p.ends > t ORDER BY p.pos LIMIT 100)";

/// Whether a claim is compatible with all that hold the key, by the variables of the functions.
fn fits(mode: &str, take: &str, limit: &str) -> String {
    format!(
        "(r.claim IS NULL AND CASE {mode} WHEN 2 THEN kind IS NULL OR kind = 2 \
         WHEN 3 THEN (kind IS NULL OR kind = 3) AND taken + {take} <= {limit} ELSE kind IS NULL END)"
    )
}

const LEAVE: &[Type] =
    &[Type::BYTEA, Type::BYTEA, Type::UUID, Type::INT8, Type::BYTEA, Type::UUID, Type::INT8];
const INSPECT: &str = include_str!("../sql/inspect.sql");

impl Ask {
    /// Which keys an inspection is about.
    fn which(self) -> &'static str {
        match self {
            Self::Look => "l.k = $1",
            _ => {
                "l.k >= $1 AND ($2 IS NULL OR l.k < $2) \
                 AND (l.claim IS NOT NULL AND l.ends > c.t OR l.closed > c.t OR p.k IS NOT NULL)"
            }
        }
    }

    fn template(self) -> (&'static str, &'static [Type]) {
        type T = Type;
        match self {
            Self::Take => (
                include_str!("../sql/take.sql"),
                &[T::BYTEA, T::BYTEA, T::UUID, T::INT2, T::INT8, T::INT8, T::BYTEA, T::UUID],
            ),
            Self::TakeAll => (
                include_str!("../sql/take_all.sql"),
                &[
                    T::BYTEA_ARRAY,
                    T::BYTEA_ARRAY,
                    T::UUID_ARRAY,
                    T::INT2_ARRAY,
                    T::INT8_ARRAY,
                    T::INT8_ARRAY,
                    T::BYTEA_ARRAY,
                    T::UUID,
                ],
            ),
            Self::Free => (include_str!("../sql/free.sql"), &[T::BYTEA, T::UUID]),
            Self::FreeAll => {
                (include_str!("../sql/free_all.sql"), &[T::BYTEA_ARRAY, T::UUID_ARRAY])
            }
            Self::Stand => (
                "SELECT * FROM @stand@($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, @with_settings@)",
                &[
                    T::BYTEA,
                    T::BYTEA,
                    T::UUID,
                    T::INT2,
                    T::INT4,
                    T::INT4,
                    T::BOOL,
                    T::BOOL,
                    T::INT8,
                    T::INT8,
                    T::BYTEA,
                    T::INT8,
                    T::UUID,
                    T::INT4,
                    T::UUID,
                ],
            ),
            Self::Leave => {
                ("SELECT * FROM @leave@($1, $2, $3, $4, $5, $6, $7, @with_settings@)", LEAVE)
            }
            Self::LeaveAndTell => (include_str!("../sql/leave_and_tell.sql"), LEAVE),
            Self::Renew => (
                include_str!("../sql/renew.sql"),
                &[T::BYTEA_ARRAY, T::UUID_ARRAY, T::INT8_ARRAY, T::INT8_ARRAY, T::BYTEA_ARRAY],
            ),
            Self::Keep => (
                "SELECT * FROM @keep@($1, $2, $3, $4, $5, $6, @with_settings@)",
                &[
                    T::BYTEA_ARRAY,
                    T::UUID_ARRAY,
                    T::INT8_ARRAY,
                    T::INT8_ARRAY,
                    T::BYTEA_ARRAY,
                    T::BOOL,
                ],
            ),
            Self::Look => (INSPECT, &[T::BYTEA]),
            Self::List => (INSPECT, &[T::BYTEA, T::BYTEA]),
            // In a statement of its own: the commit of a notification takes a lock on the database.
            Self::Notify => (
                "SELECT pg_notify(c, m), set_config('synchronous_commit', 'off', true) \
                 FROM unnest($1, $2) AS x (c, m)",
                &[T::TEXT_ARRAY, T::TEXT_ARRAY],
            ),
            Self::Tell => (include_str!("../sql/tell.sql"), &[T::INT4]),
            Self::Heal => ("SELECT * FROM @heal@($1, $2)", &[T::INT8, T::BOOL]),
            Self::Sweep => (include_str!("../sql/sweep_idle.sql"), &[]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The statements on the table `latchwork` of the schema `public`, as the server gets them.
    fn assembled() -> [(&'static str, String); 2] {
        let (schema, table) = ("public".to_owned(), "latchwork".to_owned());
        let statements = Statements::with(Names { schema, table, guarded: false, fast: false });
        let [tables, functions, comments] = statements.schema();
        let schema = [
            "-- What `latchwork init` runs: the tables, the functions, and what they are for people.\n",
            &tables,
            &functions,
            &comments,
        ];
        let mut verbs =
            String::from("-- What each request sends, on a session of its own; the guard is on.\n");
        let names = Names {
            schema: "public".into(),
            table: "latchwork".into(),
            guarded: true,
            fast: false,
        };
        for (ask, statement) in ALL.iter().zip(&Statements::with(names).list.own) {
            write!(verbs, "\n-- {ask:?}\n{}\n", statement.text.trim_end()).unwrap();
        }
        [("schema.sql", schema.join("\n")), ("verbs.sql", verbs)]
    }

    /// `LATCHWORK_WRITE=1` writes them.
    #[test]
    fn what_the_server_runs_stands_in_assembled() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assembled");
        for (file, text) in assembled() {
            let path = folder.join(file);
            if std::env::var_os("LATCHWORK_WRITE").is_some() {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&path, &text).unwrap();
            }
            let tracked = fs::read_to_string(&path).unwrap_or_default();
            assert!(
                tracked == text,
                "{}: LATCHWORK_WRITE=1 cargo test -p latchwork-postgres --lib assembled",
                path.display()
            );
        }
    }

    #[test]
    fn nothing_is_left_to_fill_in() {
        for (file, text) in assembled() {
            for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
                let mut parts = line.split('@').skip(1);
                let left = parts.find(|part| part.starts_with(|c: char| c.is_ascii_lowercase()));
                assert_eq!(left, None, "{file}: {line}");
            }
        }
    }
}
