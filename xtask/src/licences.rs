//! The licences of all dependencies, and the dependencies of which there are two versions.
//!
//! cargo-deny does this and more. It takes many minutes to build, more than a run of all tests can
//! spare, and these two questions are answered by what `cargo metadata` prints.

use std::collections::{BTreeMap, BTreeSet};

/// Licences that ask for no more than a notice, which everybody may use with MIT or Apache-2.0.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    // The list of certificates that kube has on systems without one of their own; not built here.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// The last sqlx for our Rust has dependencies of an age before those of tokio-postgres.
const SQLX: &str = "sqlx is at 0.8 until the least Rust is 1.94";
const ELSEWHERE: &str = "sqlx is at 0.8; not built here";

/// Dependencies of which two versions are built, and why that cannot be helped.
const TWICE: &[(&str, &str)] = &[
    ("block-buffer", SQLX),
    ("cpufeatures", SQLX),
    ("crypto-common", SQLX),
    ("digest", SQLX),
    ("embedded-io", "tests: postcard names two versions and uses neither"),
    ("fallible-iterator", "tests: tokio-postgres and rusqlite"),
    ("foldhash", SQLX),
    ("getrandom", "ring is at 0.2; tests: tempfile and rand are at 0.4"),
    ("hashbrown", "tests: dashmap of the model, metrics-util, indexmap"),
    ("hashlink", SQLX),
    ("hmac", SQLX),
    ("itertools", "ratatui is at 0.14; prost-derive, which runs at build time, is at 0.15"),
    ("md-5", SQLX),
    ("r-efi", "getrandom on UEFI; not built here"),
    ("rand", "tests: the model and metrics-util are at 0.9, proptest at 0.10; sqlx is at 0.8"),
    ("rand_chacha", SQLX),
    ("rand_core", "with rand"),
    ("redox_syscall", ELSEWHERE),
    ("sha2", SQLX),
    ("syn", "macros that run at build time, of both ages"),
    ("wasi", "getrandom and tokio on WASI; not built here"),
    ("wasite", ELSEWHERE),
    ("whoami", SQLX),
    ("windows_aarch64_gnullvm", ELSEWHERE),
    ("windows_aarch64_msvc", ELSEWHERE),
    ("windows_i686_gnu", ELSEWHERE),
    ("windows_i686_msvc", ELSEWHERE),
    ("windows-sys", "ring is at 0.52, sqlx at 0.48; not built here"),
    ("windows-targets", ELSEWHERE),
    ("windows_x86_64_gnu", ELSEWHERE),
    ("windows_x86_64_gnullvm", ELSEWHERE),
    ("windows_x86_64_msvc", ELSEWHERE),
];

/// Checks both.
pub(crate) fn run() -> Result<(), String> {
    let metadata = crate::package::metadata(&[])?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let (name, licence) = (text("name"), text("license"));
        versions.entry(name).or_default().insert(text("version"));
        if !is_allowed(licence) {
            wrong.push(format!("{name}: licence {licence:?} is not in the list"));
        }
    }
    versions.retain(|_, versions| versions.len() > 1);
    let known = |name: &str| TWICE.iter().any(|(known, _)| *known == name);
    for (name, versions) in versions.iter().filter(|(name, _)| !known(name)) {
        wrong.push(format!("{name}: several versions, {versions:?}; take one, or say why not"));
    }
    for (name, _) in TWICE.iter().filter(|(name, _)| !versions.contains_key(name)) {
        wrong.push(format!("{name}: only one version now; remove it from the list"));
    }
    if wrong.is_empty() {
        let several = versions.len();
        println!("{} packages, licences as allowed; {several} in several versions", packages.len());
        return Ok(());
    }
    Err(format!("see xtask/src/licences.rs\n  {}", wrong.join("\n  ")))
}

/// Whether an SPDX expression can be met with licences of the list. Some old ones write `/` for OR.
fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    any(&mut words).unwrap_or(false) && words.is_empty()
}

/// Takes alternatives off the end of the reversed words.
fn any(words: &mut Vec<&str>) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.pop_if(|word| *word == "OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

fn all(words: &mut Vec<&str>) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.pop_if(|word| *word == "AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: &mut Vec<&str>) -> Option<bool> {
    let word = words.pop()?;
    if word == "(" {
        let allowed = any(words)?;
        return words.pop_if(|word| *word == ")").map(|_| allowed);
    }
    if words.pop_if(|word| *word == "WITH").is_some() {
        return Some(ALLOWED.contains(&&*format!("{word} WITH {}", words.pop()?)));
    }
    Some(ALLOWED.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn a_choice_needs_one_and_a_sum_all() {
        for yes in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert!(is_allowed(yes), "{yes}");
        }
        for no in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR ISC) AND GPL-3.0",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "MIT OR",
            "(MIT",
            "MIT MIT",
        ] {
            assert!(!is_allowed(no), "{no}");
        }
    }
}
