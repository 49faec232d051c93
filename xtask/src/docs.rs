//! The documentation of a library, checked when its examples are run: as cargo's rustdoc, with what the tests were built
//! from. `cargo doc` would check all dependencies once more.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Set where this program stands in for rustdoc.
const STANDS_IN: &str = "XTASK_IS_RUSTDOC";

/// Options of the tests alone that have a value.
const OF_TESTS: [&str; 2] = ["--test-run-directory", "--test-args"];

/// Lets cargo call this program in place of rustdoc.
pub(crate) fn stand_in(cargo: &mut Command) -> Result<(), String> {
    cargo.env("RUSTDOC", crate::workspace::own()?).env(STANDS_IN, "1");
    Ok(())
}

pub(crate) fn is_asked() -> bool {
    std::env::var_os(STANDS_IN).is_some()
}

/// Runs the examples of a library, and then documents it: a warning is an error.
pub(crate) fn test_and_check() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let mut passed = ran(&arguments);
    let is =
        |text: &str| arguments.iter().any(|it| it.to_str().is_some_and(|it| it.contains(text)));
    // What is not published has no readers.
    if is("--test") && is("crates/") {
        passed &= ran(&documenting(arguments));
    }
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ran(arguments: &[OsString]) -> bool {
    // What an example calls is no stand-in.
    let status = Command::new("rustdoc").env_remove(STANDS_IN).args(arguments).status();
    status.is_ok_and(|status| status.success())
}

/// The same for the documentation, as it is published.
fn documenting(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if OF_TESTS.iter().any(|name| argument == *name) {
            arguments.next();
        } else if argument != "--test" {
            kept.push(argument);
        }
    }
    let place = Path::new("target").join("doc").into_os_string();
    let more = ["-D", "warnings", "-o"].map(OsString::from);
    kept.extend(more.into_iter().chain([place]));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_is_made_from_the_arguments_of_the_examples() {
        let said = "--crate-name a --test src/lib.rs --test-run-directory . --extern b=b.rlib";
        let made = documenting(said.split(' ').map(OsString::from).collect());
        let made: Vec<_> = made.iter().filter_map(|word| word.to_str()).collect();
        assert_eq!(made[..5], ["--crate-name", "a", "src/lib.rs", "--extern", "b=b.rlib"]);
        assert!(made.contains(&"warnings") && !made.contains(&"--test"));
    }
}
