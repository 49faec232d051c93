//! The statements, with the names of the tables filled in.

use tokio_postgres::types::Type;

use crate::config::PostgresConfig;
use crate::names::{class, quoted};

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

/// One statement, and the types of what it is given.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) types: &'static [Type],
}

/// All statements on one table.
#[derive(Debug)]
pub(crate) struct Statements {
    /// For sessions of our own, which have their settings.
    own: Vec<Statement>,
    /// For sessions of a pooler: each brings the settings along.
    pooled: Vec<Statement>,
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

    /// Those of a table that is not guarded.
    pub(crate) fn of_tables(schema: &str, table: &str) -> Self {
        let (schema, table) = (schema.to_owned(), table.to_owned());
        Self::with(Names { schema, table, guarded: false, fast: false })
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
        let (own, pooled) = (statements(false), statements(true));
        Self { own, pooled, names }
    }

    /// A statement for a session of a pooler.
    pub(crate) fn pooled(&self, ask: Ask) -> &Statement {
        &self.pooled[ask as usize]
    }

    /// All statements for a session of our own.
    pub(crate) fn own(&self) -> &[Statement] {
        &self.own
    }

    /// What makes the tables, and then the functions.
    pub(crate) fn schema(&self) -> [String; 5] {
        [
            include_str!("sql/tables.sql"),
            include_str!("sql/stand.sql"),
            include_str!("sql/leave.sql"),
            include_str!("sql/keep.sql"),
            include_str!("sql/heal.sql"),
        ]
        .map(|text| self.names.fill(text))
    }

    /// A text of the caller's with the names filled in.
    pub(crate) fn fill(&self, text: &str) -> String {
        self.names.fill(text)
    }

    /// The table of locks, as `to_regclass` reads it.
    pub(crate) fn table(&self) -> String {
        self.names.object("")
    }

    /// The number that sets the advisory locks of this table apart.
    pub(crate) fn class(&self) -> i32 {
        class(&self.names.schema, &self.names.table)
    }
}

/// True, and the statement waits for a lock no longer than a verb waits for its answer.
const LIMITED: &str = "set_config('lock_timeout', '2s', true) IS NOT NULL";

/// True, and the functions find what they name and plan as they do in a session of our own ([`crate::connect::SESSION`]).
const PLANS: &str = "set_config('search_path', 'pg_catalog, pg_temp', true) IS NOT NULL AND set_config('enable_bitmapscan', 'off', true) IS NOT NULL AND set_config('enable_seqscan', 'off', true) IS NOT NULL \
     AND set_config('plan_cache_mode', 'force_generic_plan', true) IS NOT NULL AND set_config('jit', 'off', true) IS NOT NULL";

/// Fills in what a statement sets by itself: all that a session of a pooler cannot have. What is given to a function is
/// evaluated before it runs.
fn settings(text: &str, is_pooled: bool) -> String {
    let (limited, durable) = match is_pooled {
        true => (LIMITED, &*format!("CASE WHEN {LIMITED} AND {PLANS} THEN '@durable@' END")),
        false => ("true", "'@durable@'"),
    };
    text.replace("@limited@", limited).replace("@with_settings@", durable)
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

    fn durable(&self) -> &'static str {
        if self.fast { "off" } else { "on" }
    }

    fn fill(&self, text: &str) -> String {
        let mut text = text
            .replace("@sweep@\n", include_str!("sql/sweep.sql"))
            .replace("@serve@\n", include_str!("sql/serve.sql"))
            .replace("@news@\n", include_str!("sql/news.sql"));
        text = expand(&text, "@fits:", |which| {
            let parts: Vec<&str> = which.split(',').collect();
            fits(parts[0], parts[1], parts[2])
        });
        text = expand(&text, "@notify:", |key| {
            format!(
                "CASE WHEN {} AND {HAS_ROOM} THEN {} END",
                self.is_observed(key),
                self.notify(key)
            )
        });
        let guarded = match self.guarded {
            false => "true".to_owned(),
            true => "EXISTS (SELECT FROM @alive@ g, @locks@ s WHERE g.nonce = $8 \
                     AND g.opens <= clock_timestamp() AND s.k = '' AND s.claim = $8)"
                .to_owned(),
        };
        text = text.replace("@guarded@", &guarded);
        text = expand(&text, "@row:", row_of).replace("@front@", FRONT);
        text = expand(&text, "@index:", |suffix| quoted(&format!("{}_{suffix}", self.table)));
        let objects = [
            "line", "claims", "held", "alive", "fence", "stand", "leave", "keep", "heal", "observe",
        ];
        for suffix in objects {
            text = text.replace(&format!("@{suffix}@"), &self.object(&format!("_{suffix}")));
        }
        text.replace("@locks@", &self.object(""))
            .replace("@us@", "(date_part('epoch', clock_timestamp()) * 1e6::float8)::bigint")
            .replace(
                "@notify@",
                &format!(
                    "IF {} AND {HAS_ROOM} THEN PERFORM {}; END IF;",
                    self.is_observed("a_k"),
                    self.notify("a_k")
                ),
            )
            .replace("@durable@", self.durable())
            .replace("@channel@", &channel(class(&self.schema, &self.table)))
            .replace("@class@", &class(&self.schema, &self.table).to_string())
    }
}

/// Replaces each `@name:parameter@`.
fn expand(text: &str, name: &str, with: impl Fn(&str) -> String) -> String {
    let mut text = text.to_owned();
    while let Some(start) = text.find(name) {
        let rest = &text[start + name.len()..];
        let end = rest.find('@').unwrap_or(rest.len());
        let expanded = with(&rest[..end]);
        text.replace_range(start..start + name.len() + end + 1, &expanded);
    }
    text
}

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

/// The first hundred in line. A waiter further behind looks by itself before a message could bring it.
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
const INSPECT: &str = include_str!("sql/inspect.sql");

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
                include_str!("sql/take.sql"),
                &[T::BYTEA, T::BYTEA, T::UUID, T::INT2, T::INT8, T::INT8, T::BYTEA, T::UUID],
            ),
            Self::TakeAll => (
                include_str!("sql/take_all.sql"),
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
            Self::Free => (include_str!("sql/free.sql"), &[T::BYTEA, T::UUID]),
            Self::FreeAll => (include_str!("sql/free_all.sql"), &[T::BYTEA_ARRAY, T::UUID_ARRAY]),
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
            Self::LeaveAndTell => (include_str!("sql/leave_and_tell.sql"), LEAVE),
            Self::Renew => (
                include_str!("sql/renew.sql"),
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
            Self::Tell => (include_str!("sql/tell.sql"), &[T::INT4]),
            Self::Heal => ("SELECT * FROM @heal@($1, $2)", &[T::INT8, T::BOOL]),
            Self::Sweep => (include_str!("sql/sweep_idle.sql"), &[]),
        }
    }
}
