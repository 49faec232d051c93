//! The curves of how cost grows, in their short form: tables, exponents, a picture.

use std::process::Command;

/// Runs measurements in their short form: the tables, and the folder of the pictures.
fn measured(names: &[&str]) -> (String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let tables = folder.path().join("tables.md");
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork-bench"));
    command.arg("--short").args(names).env("LATCHWORK_GROWTH_SECONDS", "60");
    command.arg("--out").arg(&tables).arg("--svg").arg(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (std::fs::read_to_string(tables).unwrap(), folder)
}

/// The first number in a column of the row that begins so.
fn cell(tables: &str, row: &str, column: usize) -> f64 {
    let row = tables.lines().find(|line| line.starts_with(row));
    let row = row.unwrap_or_else(|| panic!("no row {row:?} in {tables}"));
    let cell = row.split(" | ").nth(column).unwrap();
    cell.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{cell:?} of {row}"))
}

#[test]
fn a_curve_has_its_sizes_exponents_and_picture() {
    let (tables, folder) = measured(&["growth-redis-waiters"]);
    for size in ["| 1 |", "| 10 |", "| 100 |"] {
        let drain = cell(&tables, size, 7);
        assert!(drain > 0.0 && drain < 60_000.0, "{tables}");
    }
    // A handover is a release, and the renewal by which the next holder confirms its grant.
    assert!(cell(&tables, "| 10 |", 10) < 4.0, "{tables}");
    for row in ["| time to drain (all) |", "| server CPU a release (each) |"] {
        assert!(cell(&tables, row, 2).abs() < 3.0, "{tables}");
    }
    for size in ["1 waiters", "10 waiters", "100 waiters"] {
        let row = format!(
            "| nobody starves, {size} | - | - | - | waiters not served <= 0: 0.00, holds |"
        );
        assert!(tables.contains(&row), "no {row:?} in {tables}");
    }
    let svg =
        std::fs::read_to_string(folder.path().join("bench-growth-waiters-drain.svg")).unwrap();
    assert!(svg.contains("Waiters on Redis") && svg.contains("<circle"), "{svg}");
}

#[test]
fn keys_used_once_leave_what_the_table_says() {
    let (tables, _folder) = measured(&["growth-file-keys"]);
    assert!(tables.contains("every key is had, 1,000 keys"), "{tables}");
    assert!(cell(&tables, "| 1,000 |", 1) > 10.0, "{tables}");
}
