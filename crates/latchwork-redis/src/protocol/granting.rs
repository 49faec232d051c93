//! The scripts that grant or keep a place, in four forms: with the guard in them or not, for a Cluster or not.

use std::sync::LazyLock;

use redis::Cmd;

use crate::protocol::guard::Rule;
use crate::protocol::names::Names;
use crate::protocol::scripts::{PLAIN_RELEASE, guarded, script, sharded};
use crate::server::access::Probe;
use crate::server::connection::command;
use crate::server::link::Link;
use crate::server::script::Script;

/// The piece behind the guard: after it, the keys are those of the script.
const GUARD_DONE: &str = include_str!("scripts/guard_done.lua");
/// The piece between the two in front of a try.
const GUARD_TRY: &str = include_str!("scripts/guard_try.lua");
/// The piece behind both in front of a try.
const GUARD_TRY_FREE: &str = include_str!("scripts/guard_try_free.lua");
/// The piece between the two in front of a try of many claims.
const GUARD_TAKE: &str = include_str!("scripts/guard_take.lua");

/// The scripts that grant or keep a place.
pub(crate) struct Granting {
    pub(crate) try_: Script,
    pub(crate) take: Script,
    pub(crate) release: Script,
    pub(crate) enqueue: Script,
    pub(crate) hand_on: Script,
    pub(crate) warn: Script,
}

impl Granting {
    fn new(is_guarded: bool, is_sharded: bool) -> Self {
        let made = |between: &[&str], source: &str| {
            let script = match is_guarded {
                false => script(source),
                true => guarded(between, source),
            };
            if is_sharded { sharded(script) } else { script }
        };
        Self {
            try_: made(&[GUARD_TRY, GUARD_DONE, GUARD_TRY_FREE], include_str!("scripts/try.lua")),
            take: made(&[GUARD_TAKE, GUARD_DONE], include_str!("scripts/take.lua")),
            release: made(&[GUARD_DONE], include_str!("scripts/release.lua")),
            enqueue: made(&[GUARD_DONE], include_str!("scripts/enqueue.lua")),
            hand_on: made(&[GUARD_DONE], include_str!("scripts/hand_on.lua")),
            warn: {
                let warn = script(include_str!("scripts/warn.lua"));
                if is_sharded { sharded(warn) } else { warn }
            },
        }
    }

    /// Each of them, by name.
    pub(crate) fn each(&self) -> [(&'static str, &Script); 6] {
        [
            ("try", &self.try_),
            ("take", &self.take),
            ("release", &self.release),
            ("enqueue", &self.enqueue),
            ("hand_on", &self.hand_on),
            ("warn", &self.warn),
        ]
    }
}

/// By whether the guard is on, and whether the store is a Cluster.
static GRANTING: [[LazyLock<Granting>; 2]; 2] = [
    [LazyLock::new(|| Granting::new(false, false)), LazyLock::new(|| Granting::new(false, true))],
    [LazyLock::new(|| Granting::new(true, false)), LazyLock::new(|| Granting::new(true, true))],
];

/// The scripts that grant or keep a place, with the guard in them or not: chosen once for a store.
#[derive(Clone)]
pub(crate) struct Scripts {
    pub(crate) granting: &'static Granting,
    rule: Option<Rule>,
}

impl Scripts {
    pub(crate) fn by(rule: Option<Rule>, sharded: bool) -> Self {
        let granting = &GRANTING[usize::from(rule.is_some())][usize::from(sharded)];
        Self { granting, rule }
    }

    /// Appends the keys of a script, and the marker while the guard is on.
    pub(crate) fn keys(
        &self,
        command: &mut Cmd,
        names: &Names,
        keys: &[impl redis::ToSingleRedisArg],
    ) {
        command.arg(keys.len() + usize::from(self.rule.is_some())).arg(keys);
        if self.rule.is_some() {
            command.arg(names.guard());
        }
    }

    /// Appends the arguments of the guard, while it is on.
    pub(crate) fn fill(&self, command: &mut Cmd, link: &Link) {
        if let Some(rule) = &self.rule {
            rule.fill(command, link);
        }
    }
}

/// The commands that a new connection tries.
///
/// The scripts are real ones, which find no lock of this name and do nothing: a toy would say nothing about their text.
pub(crate) fn probe(sharded: bool) -> Probe {
    let names = ["1", "2", "3", "4"].map(|name| format!("{{lw:probe}}:{name}"));
    let hand_on = &Scripts::by(None, sharded).granting.hand_on;
    let mut several_keys = command(&["EVAL", &hand_on.source, "4"]);
    several_keys.arg(&names).arg("").arg("").arg("").arg("").arg("");
    let one_key = command(&["EVAL", PLAIN_RELEASE, "1", &names[0], ""]);
    Probe { sharded, several_keys, one_key, channel: "lw:push:probe" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::scripts::{
        FREE, GUARD_INIT, GUARD_LOOK, INSPECT, RELEASE, RENEW, of_plain_mode, whole,
        without_comments,
    };

    #[test]
    fn the_guard_is_in_the_scripts_only_while_it_is_on() {
        let [plain, guarded] = &GRANTING;
        for ((name, plain), (_, guarded)) in
            plain[0].each().into_iter().zip(guarded[0].each()).take(5)
        {
            assert!(!plain.source.contains("guard"), "{name}");
            assert!(guarded.source.matches("guard.is_open").count() >= 3, "{name}");
            assert_ne!(plain.hash, guarded.hash, "{name}");
        }
    }

    /// H250: some hosted services read the text of a script before they run it, and refuse one with a key, or a
    /// command, that is not written out.
    #[test]
    fn h250_no_script_has_a_key_that_is_not_written_out() {
        let granting = GRANTING.iter().flatten().flat_map(|granting| granting.each());
        let others = [
            ("renew", &*RENEW),
            ("release", &*RELEASE),
            ("inspect", &*INSPECT),
            ("free", &*FREE),
            ("guard_look", &*GUARD_LOOK),
            ("guard_init", &*GUARD_INIT),
        ];
        let scripts: Vec<(&str, String)> = granting
            .map(|(name, script)| (name, script.source.clone()))
            .chain(others.map(|(name, script)| (name, script.source.clone())))
            .chain(of_plain_mode())
            .chain([("fence", crate::fence::set())])
            .collect();
        assert!(scripts.len() > 4 * 6 + 6 + 6);
        for (name, source) in &scripts {
            assert!(!without_comments(source).contains("--"), "{name} is not whole");
            assert_eq!(latchwork_services::refused_script(source), None, "{name}:\n{source}");
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/protocol/scripts"))
            .unwrap();
        for file in files.map(|file| file.unwrap().path()).filter(|file| file.is_file()) {
            let text = std::fs::read_to_string(&file).unwrap();
            let text = without_comments(&whole(&text));
            let is_in = |(_, source): &(_, String)| {
                let source = without_comments(source);
                text.lines().all(|line| source.contains(line))
            };
            assert!(scripts.iter().any(is_in), "{} is in no script", file.display());
        }
    }

    /// A script with its indents, which the server does not get.
    fn indented(source: &str) -> String {
        let (mut text, mut depth) = (String::new(), 0_usize);
        for line in source.lines() {
            let words: Vec<&str> = line.split(|c: char| c != '_' && !c.is_alphanumeric()).collect();
            let count = |those: &[&str]| words.iter().filter(|word| those.contains(word)).count();
            let (opened, closed) = (count(&["function", "then", "do"]), count(&["end", "elseif"]));
            let is_back = ["end", "else", "elseif"].iter().any(|it| words.first() == Some(it));
            let at = depth - usize::from(is_back && depth > 0);
            text.push_str(&format!("{}{line}\n", "  ".repeat(at)));
            depth = (depth + opened).saturating_sub(closed);
        }
        text
    }

    /// What the server runs, in the form of one server. `LATCHWORK_WRITE=1` writes it.
    #[test]
    fn what_the_server_runs_stands_in_assembled() {
        let others: [(&str, &Script); 6] = [
            ("renew", &RENEW),
            ("release of a key that nobody waits for", &FREE),
            ("release of many", &RELEASE),
            ("inspect", &INSPECT),
            ("guard_look", &GUARD_LOOK),
            ("guard_init", &GUARD_INIT),
        ];
        let plain = of_plain_mode().map(|(name, source)| (name, without_comments(&source)));
        let of = |granting: &Granting| granting.each().map(|(name, it)| (name, it.source.clone()));
        let usual = of(&GRANTING[0][0]).into_iter();
        let usual = usual.chain(others.map(|(name, it)| (name, it.source.clone())));
        let files = [
            ("scripts.lua", usual.collect::<Vec<_>>()),
            ("guarded.lua", of(&GRANTING[1][0]).into()),
            ("plain.lua", plain.into()),
        ];
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("assembled");
        for (file, scripts) in files {
            let mut text =
                String::from("-- What the server runs, with indents that it does not get.\n");
            for (name, source) in scripts {
                text.push_str(&format!("\n-- {name}\n{}", indented(&source)));
            }
            let path = folder.join(file);
            if std::env::var_os("LATCHWORK_WRITE").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &text).unwrap();
            }
            let tracked = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                tracked == text,
                "{}: LATCHWORK_WRITE=1 cargo test -p latchwork-redis --lib assembled",
                path.display()
            );
        }
    }
}
