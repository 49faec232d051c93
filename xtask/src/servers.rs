//! Fetches or builds the servers that tests run on and that the system has not.

use std::process::Command;

use crate::workspace::root;

/// Fetches or builds these, or the newest of each.
pub(crate) fn run(wanted: &[String]) -> Result<(), String> {
    let all = names()?;
    for name in if wanted.is_empty() { &all } else { wanted } {
        println!("{name}: {}", place(name)?);
    }
    Ok(())
}

/// Returns the place of a server. The script fetches or builds it first if it is missing, and reports that on standard
/// error.
pub(crate) fn place(name: &str) -> Result<String, String> {
    let script = root().join("proof/services/provide");
    let mut command = Command::new("sh");
    let output = command.arg(&script).arg(name).stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|e| format!("{}: {e}", script.display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        false => Err(format!("{name} is not there")),
    }
}

/// All servers of the table, as `NAME@VERSION`.
pub(crate) fn versions() -> Result<Vec<String>, String> {
    let path = root().join("proof/services/servers.tsv");
    let table = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let server = |row: &str| {
        let mut fields = row.split('\t');
        Some(format!("{}@{}", fields.next()?, fields.next()?))
    };
    Ok(rows.filter_map(server).collect())
}

/// All names of the table, each once.
fn names() -> Result<Vec<String>, String> {
    let name = |server: &String| server.split('@').next().map(str::to_owned);
    let mut names: Vec<_> = versions()?.iter().filter_map(name).collect();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_named_once() {
        let names = names().unwrap();
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len(), "the rows of a name stand together: {names:?}");
    }
}
