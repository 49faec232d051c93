//! The long searches, as a command.

#![expect(clippy::print_stdout, reason = "a command for people")]

use std::io::Write;
use std::process::ExitCode;

use latchwork_model::{Found, Search, Variant, all, named, story};

const HELP: &str = "\
latchwork-model list
latchwork-model search [VARIANT...] [--threads 1] [--limit 100000000]
latchwork-model tell VARIANT...

  list      the variants, and what each is about
  search    visits the states of each variant (of all, if none is named), prints a table, and for
            a broken one the shortest way to what it violates, as it is recorded in stories/
  tell      prints a recorded story, with what each step changes

  --threads N   for the variants that should hold; a shortest way is looked for by one thread
  --limit N     gives up after so many steps

Exits 1 if a variant that should hold does not, or a broken one is not found out.
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match words.next().as_deref() {
        Some("list") => list(),
        Some("search") => search(words),
        Some("tell") => tell(words),
        _ => {
            print!("{HELP}");
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("latchwork-model: {error}");
            ExitCode::from(2)
        }
    }
}

fn list() -> Result<bool, String> {
    for variant in all() {
        let expected = match &variant.broken {
            Some(broken) => format!("violates {}", broken.violates),
            None => "holds".to_owned(),
        };
        println!("{:<4} {:<30} {}", variant.name, expected, variant.about);
    }
    Ok(true)
}

fn tell(names: impl Iterator<Item = String>) -> Result<bool, String> {
    for name in names {
        let variant = find(&name)?;
        let broken = variant.broken.as_ref().ok_or(format!("{name} holds: it has no story"))?;
        let steps = story::read(broken.story)?;
        println!("{}", story::record(&variant, &steps));
        let mended = story::replay(&broken.mended, &steps);
        let impossible: Vec<String> = mended.impossible.iter().map(usize::to_string).collect();
        match (&mended.violation, &impossible[..]) {
            (Some((property, _)), _) => println!("Mended, it still violates {property}.\n"),
            (None, []) => println!("Mended, the same steps violate nothing.\n"),
            (None, _) => println!(
                "Mended, steps {} cannot happen, and the others violate nothing.\n",
                impossible.join(", ")
            ),
        }
    }
    Ok(true)
}

fn search(mut words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut threads, mut limit) = (1, 100_000_000);
    let mut variants = Vec::new();
    while let Some(word) = words.next() {
        let flag = match word.as_str() {
            "--threads" => &mut threads,
            "--limit" => &mut limit,
            name => {
                variants.push(find(name)?);
                continue;
            }
        };
        let value = words.next().and_then(|value| value.parse().ok());
        *flag = value.filter(|n| *n > 0).ok_or(format!("{word} needs a number"))?;
    }
    if variants.is_empty() {
        variants = all();
    }
    let mut rows = Vec::new();
    let mut stories = String::new();
    let mut as_expected = true;
    for variant in &variants {
        let search = match variant.broken {
            Some(_) => Search { nearest_first: true, threads: 1, limit },
            None => Search { nearest_first: false, threads, limit },
        };
        let found = search.run(&variant.model, |so_far| {
            eprint!("\r{}: {} states in {} s ", variant.name, so_far.unique, so_far.took.as_secs());
            let _ = std::io::stderr().flush();
        });
        eprintln!("\r{}: {} states, done{:30}", variant.name, found.progress.unique, "");
        rows.push(row(variant, &found));
        as_expected &= is_expected(variant, &found);
        if let Some((_, steps)) = &found.violation {
            stories += &format!("\n{}", story::record(variant, steps));
        }
    }
    println!("| variant | what | unique states | search | result | steps | seconds |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    rows.iter().for_each(|row| println!("{row}"));
    print!("{stories}");
    Ok(as_expected)
}

fn find(name: &str) -> Result<Variant, String> {
    named(name).ok_or(format!("there is no variant {name:?}; see list"))
}

fn is_expected(variant: &Variant, found: &Found) -> bool {
    match (&variant.broken, &found.violation) {
        (Some(broken), Some((property, _))) => broken.violates == *property,
        (None, None) => found.unseen.is_empty() || !found.complete,
        _ => false,
    }
}

fn row(variant: &Variant, found: &Found) -> String {
    let search = match (&found.violation, found.complete) {
        (Some(_), _) => "ended",
        (None, true) => "complete",
        (None, false) => "bounded",
    };
    let mut result = match &found.violation {
        Some((property, _)) => format!("violates {property}"),
        None if found.complete => "holds".to_owned(),
        None => "no violation found".to_owned(),
    };
    if found.violation.is_none() && !found.unseen.is_empty() {
        result += &format!("; never seen: {}", found.unseen.join(", "));
    }
    if !is_expected(variant, found) {
        result += " (NOT AS EXPECTED)";
    }
    let steps =
        found.violation.as_ref().map_or("-".to_owned(), |(_, steps)| steps.len().to_string());
    format!(
        "| {} | {} | {} | {search} | {result} | {steps} | {:.1} |",
        variant.name,
        variant.about,
        found.progress.unique,
        found.progress.took.as_secs_f64(),
    )
}
