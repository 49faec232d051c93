//! `latchwork man`: manual pages.

use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man;

use latchwork_store::doctor::word;

use crate::args::{Cli, ManArgs};
use crate::exit;
use crate::output::Output;

/// Prints the manual page of the command or of a verb, or writes all of them into a directory.
pub(crate) fn run(args: &ManArgs, output: &Output) -> u8 {
    let mut command = Cli::command();
    command.build();
    if let Some(directory) = &args.dir {
        return write_all(&command, directory, output);
    }
    // The page of a verb is called `latchwork-run`.
    let verb = args.verb.as_deref().map(|verb| verb.strip_prefix("latchwork-").unwrap_or(verb));
    let shown = match verb {
        None => &command,
        Some(verb) => match command.find_subcommand(verb) {
            Some(found) => found,
            None => {
                let step = format!("`latchwork man --dir {}`", word(verb));
                let message = format!(
                    "VERB: {verb:?} is no verb of latchwork; to write all pages into this directory, run {step}"
                );
                output.fail("Usage", &message);
                return exit::USAGE;
            }
        },
    };
    match page(shown) {
        Ok(page) => output.raw(&page),
        Err(error) => broken(output, &error.to_string()),
    }
}

fn write_all(command: &Command, directory: &Path, output: &Output) -> u8 {
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let written = std::fs::create_dir_all(directory).and_then(|()| {
        std::iter::once(command).chain(verbs).try_for_each(|shown| {
            let name = format!("{}.1", display_name(shown));
            std::fs::write(directory.join(name), page(shown)?)
        })
    });
    match written {
        Ok(()) => 0,
        Err(error) if directory.exists() && !directory.is_dir() => {
            let directory = directory.display();
            output.fail("Usage", &format!("--dir: {directory} is not a directory: {error}"));
            exit::USAGE
        }
        Err(error) => broken(output, &format!("{}: {error}", directory.display())),
    }
}

fn display_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The page of the command or of a verb. The synopsis is our own: it has values, dots and the `--`.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    write!(page, ".SH SYNOPSIS\n{}\n", escaped(&synopsis(command)))?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if command.get_after_help().is_some() || command.get_after_long_help().is_some() {
        man.render_extra_section(&mut page)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// `latchwork-run [--read] [--wait TIME] .. NAME... [-- COMMAND...]`
fn synopsis(command: &Command) -> String {
    let mut words = vec![display_name(command).replace('-', " ")];
    let (operands, options): (Vec<_>, Vec<_>) = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set())
        .partition(|arg| arg.is_positional());
    let own = options.iter().filter(|arg| !arg.is_global_set());
    words.extend(
        own.filter(|arg| arg.get_id() != "help" && arg.get_id() != "version")
            .map(|arg| option(arg)),
    );
    words.push("[GLOBAL OPTIONS]".to_owned());
    words.extend(operands.iter().map(|arg| operand(arg)));
    if command.has_subcommands() {
        words.push("VERB ...".to_owned());
    }
    words.join(" ")
}

fn option(arg: &Arg) -> String {
    let name = match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, short) => short.map(|short| format!("-{short}")).unwrap_or_default(),
    };
    let value = match arg.get_action() {
        ArgAction::Set | ArgAction::Append => value(arg),
        _ => String::new(),
    };
    let text = match (value.is_empty(), arg.is_require_equals_set()) {
        (true, _) => name,
        (false, true) => format!("{name}[={value}]"),
        (false, false) => format!("{name} {value}"),
    };
    if arg.is_required_set() { text } else { format!("[{text}]") }
}

fn operand(arg: &Arg) -> String {
    let several = matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|count| count.max_values() > 1);
    let text = format!("{}{}", value(arg), if several { "..." } else { "" });
    match (arg.is_last_set(), arg.is_required_set()) {
        (true, _) => format!("[-- {text}]"),
        (false, true) => text,
        (false, false) => format!("[{text}]"),
    }
}

fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    match names.first() {
        Some(name) => name.to_string(),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// A line of text as roff reads it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('-', "\\-")
}

fn broken(output: &Output, message: &str) -> u8 {
    output.fail("Output", &format!("cannot write the manual pages: {message}"));
    exit::BROKEN
}
