//! The commands, one file each, and what they share.

mod around;
mod attach;
mod change;
mod completions;
mod connect;
mod doctor;
mod elect;
mod help;
mod hold;
mod init;
mod locking;
mod ls;
mod man;
mod nested;
mod once;
mod progress;
mod release;
mod resize;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod show;
mod status;
#[cfg(feature = "top")]
mod top;
mod under_lock;
mod variables;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use latchwork::{Driver, Error, ErrorKind, FencingToken, LockManager};
use latchwork_file::FileBackend;
use latchwork_wire::system::{check_for_runtime, refusal_step};
use tokio::runtime::{Builder, Runtime};

use crate::args::{Cli, Command};
use crate::exit;
use crate::output::Output;
use crate::process::reaper;
use crate::process::timer::Naps;
use crate::store::{self, Store, unseen_directory};

/// How long the background work of a command may take at its end.
const CLOSING: Duration = Duration::from_secs(1);

/// After this time a server that has not let the command in is asked what it is.
const SLOW: Duration = Duration::from_millis(700);

/// What every command works with: a store, a namespace in it, and somebody who reads.
#[derive(Debug)]
pub(crate) struct Context {
    store: Store,
    namespace: String,
    token_floor: Option<FencingToken>,
    output: Output,
    /// Whether the directories above that of the store may be made.
    may_create: bool,
}

impl Context {
    /// Connects to the store to read it. A directory needs no right to write then, and nothing is made in it.
    async fn look(&self) -> Result<LockManager, Error> {
        let Some(directory) = self.store.directory() else { return self.connect().await };
        let driver = Driver::start()?;
        let backend = FileBackend::read_only(directory, driver.io());
        let backend = backend.map_err(|error| self.store.explained(error))?;
        Ok(self.named(LockManager::new(backend, driver)))
    }

    /// Connects to the store.
    async fn connect(&self) -> Result<LockManager, Error> {
        let mut connecting = pin!(latchwork::connect_from(self.store.source()));
        let connected = tokio::select! {
            biased;
            connected = &mut connecting => connected,
            () = passing(SLOW) => match self.store.other_kind() {
                Some(error) => return Err(error),
                None => connecting.await,
            },
        };
        Ok(self.named(connected.map_err(|error| self.store.explained(error))?))
    }

    /// A manager with the namespace and the token floor of the command line.
    fn named(&self, manager: LockManager) -> LockManager {
        let manager = manager.namespace(&*self.namespace);
        match self.token_floor {
            Some(floor) => manager.token_floor(floor),
            None => manager,
        }
    }

    /// Whether the store is a directory that nobody has made yet, or an empty one: then no lock is held there. A
    /// command that only reads makes nothing there, since it may be a wrong name.
    fn is_missing(&self) -> bool {
        let Some(directory) = self.store.directory() else { return false };
        if self.exists() {
            return false;
        }
        if !self.store.is_default() {
            let what = if directory.is_dir() { "is empty" } else { "does not exist" };
            let directory = directory.display();
            let message = format!("{directory} {what}, so no lock is held there; check the path");
            self.output.note("missing", &message, &[]);
        }
        true
    }

    /// Whether the store's directory is there and in use, if it is one.
    fn exists(&self) -> bool {
        match self.store.directory().map(|directory| directory.read_dir()) {
            Some(Ok(mut entries)) => entries.next().is_some(),
            Some(Err(error)) => error.kind() != io::ErrorKind::NotFound,
            None => true,
        }
    }

    /// Names the default store, and refuses a mistyped one, before a lock is taken: a lock in the wrong directory
    /// excludes nobody that uses the right one.
    ///
    /// # Errors
    ///
    /// `Invalid` if somebody has named a directory whose parent does not exist.
    fn check_for_locks(&self) -> Result<(), Error> {
        if self.store.is_default() {
            if !self.output.is_verbose() && !io::stderr().is_terminal() {
                let message = format!(
                    "no store is named; the locks are in {}, and exclude only processes of this user on this \
                     machine. Name a store with --store or LATCHWORK_STORE",
                    self.store.address()
                );
                self.output.note("default_store", &message, &[("store", self.store.address())]);
            }
            return Ok(());
        }
        let parent = self.store.directory().and_then(|it| it.parent().map(Path::to_path_buf));
        let Some(parent) = parent.filter(|_| !self.may_create && !self.exists()) else {
            return Ok(());
        };
        if parent.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let message = format!("store: there is no directory {}", parent.display());
            let step = "check the path; if it is right, make that directory, or add --create";
            let error = Error::new(ErrorKind::Invalid, message).with_next_step(step);
            return Err(self.store.blamed(error));
        }
        Ok(())
    }

    /// The key of a name.
    fn key(&self, name: &str) -> String {
        key_of(&self.namespace, name)
    }

    /// Says which store it is, if somebody wants to know, and what is dangerous about that choice.
    fn tell(&self) {
        let output = &self.output;
        let store = self.store.shown();
        output.detail("store", &format!("store: {store}"), &[("store", &store)]);
        if let Some(file) = self.store.exposed_file() {
            let file = file.display();
            let message =
                format!("other users may read the password in {file}; run chmod 600 {file}");
            output.note("exposed", &message, &[]);
        }
        if self.store.is_default()
            && let Some(other) = unseen_directory(self.store.address())
        {
            let other = other.display();
            let message = format!(
                "this command uses {}, but {other} also has locks, and the two exclude nobody from each other; set \
                 --store or LATCHWORK_STORE for both",
                self.store.address()
            );
            output.note("two_stores", &message, &[]);
        }
    }
}

/// The key of a name in a namespace.
fn key_of(namespace: &str, name: &str) -> String {
    match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}:{name}"),
    }
}

/// Does what the command line says, and returns the exit code.
pub(crate) fn run(cli: Cli) -> u8 {
    let output = Output::new(cli.json, cli.verbose, cli.quiet);
    match &cli.command {
        Command::Completions(args) => return completions::run(args, &output),
        Command::Man(args) => return man::run(args, &output),
        Command::Help(args) => return help::run(args, &output),
        // A keeper has the store.
        Command::Attach(args) => return attach::run(args, &output),
        Command::Upgrade(_) | Command::Downgrade(_) => {
            let namespace = cli.namespace.as_deref().unwrap_or_default();
            return change::run(&cli.command, namespace, &output)
                .unwrap_or_else(|error| failed(&output, &error));
        }
        Command::Release(args) if !args.force => {
            let namespace = cli.namespace.as_deref().unwrap_or_default();
            let (file, command) = (cli.store_file.as_deref(), cli.store_command.as_deref());
            let output = output.with_store(store::options(cli.store.as_deref(), file, command));
            return release::own(args, namespace, &output)
                .unwrap_or_else(|error| failed(&output, &error));
        }
        _ => {}
    }
    let found = Store::find(cli.store, cli.store_file, cli.store_command)
        .and_then(|store| Ok((store, variables::token_floor(cli.token_floor)?)));
    let place = match found {
        Ok((store, token_floor)) => {
            let output = output.with_store(store.options());
            let (namespace, may_create) = (cli.namespace.unwrap_or_default(), cli.create);
            Context { store, namespace, token_floor, output, may_create }
        }
        Err(error) => return failed(&output, &error),
    };
    // With the store, for the commands that its messages name.
    let output = place.output;
    if let Command::Hold(args) = &cli.command {
        return hold::run(args, &place);
    }
    #[cfg(feature = "serve")]
    if let Command::Serve(args) = &cli.command {
        return serve::run(args, &place);
    }
    let runtime = match start_runtime(&output) {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    reaper::start(&runtime);
    // On the main thread: it starts the command, and must live as long as it does.
    let done = runtime.block_on(async {
        place.tell();
        if takes_or_sees_locks(&cli.command) {
            refuse_a_store_of_one_process(&place.store)?;
        }
        if takes_locks(&cli.command) {
            place.check_for_locks()?;
        }
        match &cli.command {
            Command::Run(args) => run::run(args, &place).await,
            Command::Once(args) => once::run(args, &place).await,
            Command::Elect(args) => elect::run(args, &place).await,
            Command::Ls(args) => ls::run(args, &place).await,
            #[cfg(feature = "top")]
            Command::Top(args) => top::run(args, &place).await,
            Command::Show(args) => show::run(args, &place).await,
            Command::Status(args) => status::run(args, &place).await,
            Command::Release(args) => release::by_force(args, &place).await,
            Command::Resize(args) => resize::run(args, &place).await,
            Command::Doctor => doctor::run(&place).await,
            Command::Init => init::run(&place).await,
            // Done above.
            #[cfg(feature = "serve")]
            Command::Serve(_) => Ok(0),
            Command::Hold(_) | Command::Attach(_) => Ok(0),
            Command::Upgrade(_) | Command::Downgrade(_) => Ok(0),
            Command::Completions(_) | Command::Man(_) | Command::Help(_) => Ok(0),
        }
    });
    // The process ends now, so nothing has to be taken down.
    std::mem::forget(runtime);
    done.unwrap_or_else(|error| failed(&output, &error))
}

/// A runtime on this thread alone. Without one, returns the exit code.
fn start_runtime(output: &Output) -> Result<Runtime, u8> {
    let started =
        check_for_runtime().and_then(|()| Builder::new_current_thread().enable_all().build());
    started.map_err(|error| cannot_start(&error, output))
}

fn cannot_start(error: &io::Error, output: &Output) -> u8 {
    output.fail("Broken", &format!("cannot start: {error}; {}", refusal_step(error)));
    exit::BROKEN
}

fn failed(output: &Output, error: &Error) -> u8 {
    output.error(error);
    exit::code_of(error)
}

fn takes_or_sees_locks(command: &Command) -> bool {
    match command {
        Command::Run(_) | Command::Hold(_) | Command::Once(_) | Command::Elect(_) => true,
        #[cfg(feature = "top")]
        Command::Top(_) => true,
        Command::Ls(_) | Command::Show(_) | Command::Status(_) => true,
        Command::Release(_) | Command::Resize(_) => true,
        Command::Doctor | Command::Init | Command::Attach(_) => false,
        Command::Upgrade(_) | Command::Downgrade(_) => false,
        Command::Completions(_) | Command::Man(_) | Command::Help(_) => false,
        #[cfg(feature = "serve")]
        Command::Serve(_) => true,
    }
}

/// Whether a command of this process takes locks, or prepares for them. A keeper and the service do so for themselves.
fn takes_locks(command: &Command) -> bool {
    match command {
        Command::Run(_) | Command::Init => true,
        Command::Once(args) => !args.reset,
        Command::Elect(args) => !args.observe,
        _ => false,
    }
}

/// Locks in `mem:` end with the process that took them, so they exclude no other command, and no
/// other command can see them.
fn refuse_a_store_of_one_process(store: &Store) -> Result<(), Error> {
    if !store.address().starts_with("mem:") {
        return Ok(());
    }
    let message =
        "store: mem: is the memory of one process; a lock there excludes no other command";
    let error = Error::new(ErrorKind::Invalid, message).with_next_step(
        "leave --store out for a directory of this user, or name a store that is shared",
    );
    Err(store.blamed(error))
}

/// Gives what runs in the background a moment to end.
async fn close(manager: &LockManager) {
    let _ = within(CLOSING, manager.close()).await;
}

/// A pause on the boot clock; none without a timer, for what is repeated after it takes time itself.
async fn nap(length: Duration) {
    if let Ok(naps) = Naps::new() {
        let _ = naps.nap(length).await;
    }
}

/// A pause that never ends without a timer, for a limit on what has one of its own.
async fn passing(length: Duration) {
    let passed = match Naps::new() {
        Ok(naps) => naps.nap(length).await.is_ok(),
        Err(_) => false,
    };
    if !passed {
        std::future::pending::<()>().await;
    }
}

/// Runs `future` for at most `limit`, on the boot clock.
async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    // As a rule it is there at once, and needs no timer.
    if let Some(output) = future.as_mut().now_or_never() {
        return Some(output);
    }
    let Ok(naps) = Naps::new() else { return Some(future.await) };
    tokio::select! {
        biased;
        output = &mut future => Some(output),
        _ = naps.nap(limit) => None,
    }
}
