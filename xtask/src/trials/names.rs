//! The names of the trials that passed.

use std::collections::BTreeSet;
use std::fs;

use crate::workspace::root;

/// The trials that passed, by what their run printed: `package program path::name`.
///
/// What a test prints by itself may stand between its name and its result, so whatever has begun
/// and is not among the failures has passed.
pub(crate) fn passed(run: &str, said: &str) -> BTreeSet<String> {
    let failed = failed(said);
    let begun = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let names = begun.filter(|(_, result)| *result != "ignored").map(|(name, _)| name.trim());
    let names = names.map(|name| name.trim_end_matches(" - should panic"));
    names.filter(|name| !failed.contains(name)).map(|name| format!("{run} {name}")).collect()
}

/// The trials that failed, by the list that both harnesses print at the end.
pub(crate) fn failed(said: &str) -> BTreeSet<&str> {
    let list = said.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    let names = list.lines().take_while(|line| !line.starts_with("test result: "));
    names.map(str::trim).filter(|name| !name.is_empty()).collect()
}

/// Keeps what passed in `target/trials/names.txt`, and says what passed in the run before and not in this one: it was
/// renamed, left out, or it failed.
pub(crate) fn keep(ran: &BTreeSet<String>) -> Result<(), String> {
    let path = root().join("target").join("trials").join("names.txt");
    let before = fs::read_to_string(&path).unwrap_or_default();
    for name in missing(&before, ran) {
        println!("    missing   {name}");
    }
    let text: String = ran.iter().map(|name| format!("{name}\n")).collect();
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// The names of an earlier run that are not among those of this one.
fn missing<'a>(before: &'a str, ran: &BTreeSet<String>) -> Vec<&'a str> {
    before.lines().filter(|name| !ran.contains(*name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_of_the_last_run_that_is_gone_is_named() {
        let ran = BTreeSet::from(["p it a".to_owned(), "p it new".to_owned()]);
        assert_eq!(missing("p it a\np it b\n", &ran), ["p it b"]);
        assert_eq!(missing("", &ran), [""; 0]);
    }

    #[test]
    fn both_harnesses_are_read() {
        let said = "test a::b ... ok\ntest redis::b01::c      ... ok\ntest d ... FAILED\n\
                    test e ... it prints\nok\n\nfailures:\n\n---- d ----\nwhy\n\n\
                    failures:\n    d\n\ntest result: FAILED. 3 passed\n";
        assert_eq!(failed(said), BTreeSet::from(["d"]));
        assert_eq!(failed("killed"), BTreeSet::new());
        let names = passed("p it", said);
        let names: Vec<_> = names.into_iter().collect();
        assert_eq!(names, ["p it a::b", "p it e", "p it redis::b01::c"]);
    }
}
