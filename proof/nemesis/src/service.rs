//! The service between the workers and the store, and what is done to it.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork::FencingToken;
use latchwork_serve::{Listen, Settings};
use latchwork_services::{Cut, Port, Process, Proxy};
use latchwork_store::random_u128;
use serde_json::Value;

use crate::faults::Nemesis;
use crate::luck::Luck;
use crate::pause::pause;

/// What is done to the service, and to the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL, and a new service after a while.
    Kill,
    /// SIGSTOP, and SIGCONT after a while.
    Stop,
    /// SIGTERM; a new service when it has ended.
    Restart,
    /// All connections of clients are cut, again and again.
    Cut,
    /// Answers are lost on their way to the clients.
    LoseAnswers,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "service-kill",
            Self::Stop => "service-stop",
            Self::Restart => "service-restart",
            Self::Cut => "service-cut",
            Self::LoseAnswers => "service-lost-answers",
        }
    }

    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Kill, Self::Stop, Self::Restart, Self::Cut, Self::LoseAnswers];

    /// The fault of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}

/// The instances of a service of a store, and the ways that its clients take.
#[derive(Debug, Clone)]
pub struct Service(Arc<Mutex<Vec<Instance>>>, Arc<[Proxy]>);

#[derive(Debug)]
struct Instance {
    process: Process,
    program: PathBuf,
    args: Vec<String>,
    log: PathBuf,
    /// Where it hears its administrator.
    socket: PathBuf,
    port: Port,
}

impl Service {
    /// Starts so many instances with this crate's program. Several share the key that seals their ids.
    ///
    /// # Errors
    ///
    /// If the program does not start, or does not listen in time.
    pub fn start(
        program: &Path,
        store: &str,
        namespace: &str,
        folder: &Path,
        instances: usize,
    ) -> io::Result<Self> {
        let key = folder.join("seal.key");
        if instances > 1 {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&key)?;
            writeln!(file, "{:032x}{:032x}", random_u128(), random_u128())?;
        }
        let (mut all, mut ways) = (Vec::new(), Vec::new());
        for number in 0..instances {
            let port = Port::reserve()?;
            ways.push(Proxy::plain(port.number())?);
            let socket = folder.join(format!("admin-{number}.sock"));
            let (listen, admin) =
                (format!("127.0.0.1:{}", port.number()), format!("unix:{}", socket.display()));
            let key = if instances > 1 { key.to_string_lossy() } else { "none".into() };
            let args = [
                "serve",
                "--store",
                store,
                "--namespace",
                namespace,
                "--listen",
                &listen,
                "--admin",
                &admin,
                "--seal-key-file",
                &key,
            ];
            let args: Vec<_> = args.into_iter().map(str::to_owned).collect();
            let log = folder.join(format!("service-{number}.txt"));
            let process = start(program, &args, &log)?;
            let one = Instance { process, program: program.into(), args, log, socket, port };
            await_port(&one)?;
            all.push(one);
        }
        Ok(Self(Arc::new(Mutex::new(all)), ways.into()))
    }

    /// The addresses that clients use, with a comma between them.
    pub fn addresses(&self) -> String {
        let all: Vec<_> = self.1.iter().map(|way| format!("127.0.0.1:{}", way.port())).collect();
        all.join(",")
    }

    /// Takes a lock away from its holders, as an administrator does; the tokens of those that were evicted. A service
    /// that took the request and does not answer may have evicted any holder.
    ///
    /// # Errors
    ///
    /// If it does not answer in time.
    pub fn force_release(&self, name: &str) -> io::Result<Vec<FencingToken>> {
        let sockets: Vec<_> = self.lock().iter().map(|one| one.socket.clone()).collect();
        // One that is away evicts nobody.
        let Some(mut stream) = sockets.iter().find_map(|socket| UnixStream::connect(socket).ok())
        else {
            return Ok(Vec::new());
        };
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let body = r#"{"reason": "a trial"}"#;
        let head = format!(
            "POST /v1/locks/{name}/force-release HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let refused = || io::Error::other(format!("no forced release: {answer:?}"));
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(refused)?;
        let body: Value = serde_json::from_str(body)?;
        let evicted = body["evicted"].as_array().filter(|_| head.contains(" 200 "));
        let tokens = evicted.ok_or_else(refused)?.iter().filter_map(|it| it["token"].as_str());
        Ok(tokens.filter_map(|token| token.parse().ok()).collect())
    }

    /// A fault of it, for a plan.
    pub fn nemesis(&self, fault: Fault) -> Box<dyn Nemesis> {
        Box::new(Breaks { service: self.clone(), fault, broken: 0 })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Instance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn start(program: &Path, args: &[String], log: &Path) -> io::Result<Process> {
    let mut command = Command::new(program);
    command.args(args);
    Ok(Process::start(&command, log)?)
}

/// Waits until an instance accepts connections.
fn await_port(inner: &Instance) -> io::Result<()> {
    for _ in 0..1_000 {
        if std::net::TcpStream::connect(("127.0.0.1", inner.port.number())).is_ok() {
            return Ok(());
        }
        pause(Duration::from_millis(10));
    }
    Err(io::Error::other(format!("the service does not listen: {}", inner.process.log())))
}

struct Breaks {
    service: Service,
    fault: Fault,
    /// The number of the instance that is broken.
    broken: usize,
}

impl Nemesis for Breaks {
    fn name(&self) -> &str {
        self.fault.name()
    }

    fn strike(&mut self, luck: &mut Luck) -> io::Result<()> {
        let Service(_, ways) = &self.service;
        let mut all = self.service.lock();
        self.broken = luck.below(all.len());
        let inner = &mut all[self.broken];
        match self.fault {
            Fault::Kill => inner.process.kill(),
            Fault::Stop => inner.process.stop()?,
            Fault::Restart => {
                let ended = inner.process.terminate(Duration::from_secs(20));
                let status = ended?;
                if !status.success() {
                    return Err(io::Error::other(format!("the service ended with {status}")));
                }
            }
            Fault::Cut => {
                for _ in 0..5 {
                    for way in ways.iter() {
                        way.cut(Cut::Reset)?;
                    }
                    pause(luck.times(Duration::from_millis(100), 0.1..2.0));
                }
            }
            Fault::LoseAnswers => ways.iter().for_each(|way| way.lose_answers(true)),
        }
        Ok(())
    }

    fn heal(&mut self) -> io::Result<()> {
        let Service(_, ways) = &self.service;
        let mut all = self.service.lock();
        let inner = &mut all[self.broken];
        match self.fault {
            Fault::Kill | Fault::Restart => {
                inner.process = start(&inner.program, &inner.args, &inner.log)?;
                await_port(inner)?;
            }
            Fault::Stop => inner.process.cont()?,
            Fault::LoseAnswers => {
                for way in ways.iter() {
                    way.lose_answers(false);
                    // A connection that has lost something never gets its answer.
                    way.cut(Cut::Reset)?;
                }
            }
            Fault::Cut => {}
        }
        Ok(())
    }
}

/// Runs the service in this process.
///
/// # Errors
///
/// As [`latchwork_serve::serve`].
pub fn serve(
    store: &str,
    namespace: &str,
    listen: Vec<Listen>,
    seal_key_file: Option<PathBuf>,
) -> Result<(), latchwork::Error> {
    let settings = Settings::new(store).with_namespace(namespace).with_listen(listen);
    let settings = settings.with_seal_key_file(seal_key_file);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| {
        latchwork::Error::new(latchwork::ErrorKind::Unsupported, format!("no runtime: {error}"))
    })?;
    let done = runtime.block_on(async {
        latchwork_serve::serve(settings, latchwork::connect(store).await?).await
    });
    // What is held yet must not be released.
    std::mem::forget(runtime);
    done
}
