//! `latchwork serve`: the locks over HTTP, for other languages and for people who want to see.

use std::io;
use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

use latchwork::Error;
use latchwork_serve::{Detail, Settings, TlsFiles};
use latchwork_wire::system::check_for_runtime;
use tokio::runtime;

use super::{Context, cannot_start, failed};
use crate::args::ServeArgs;
use crate::output::Output;
use crate::process::reaper;

/// Runs the service until a signal stops it.
pub(crate) fn run(args: &ServeArgs, place: &Context) -> u8 {
    let output = &place.output;
    if args.print_openapi {
        return output.raw(format!("{}\n", latchwork_serve::openapi()).as_bytes());
    }
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let started = check_for_runtime().and_then(|()| check_for_threads(threads)).and_then(|()| {
        runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()
    });
    let runtime = match started {
        Ok(runtime) => runtime,
        Err(error) => return cannot_start(&error, output),
    };
    reaper::start(&runtime);
    let done = runtime.block_on(serve(args, place));
    // The process ends now. Holds that are left must not be released, because clients rely on them.
    std::mem::forget(runtime);
    match done {
        Ok(()) => 0,
        Err(error) => failed(output, &error),
    }
}

/// Whether there are so many threads for a runtime: where there are none, tokio panics.
fn check_for_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        // All of them are there at a time.
        let _closed = gate.lock();
        let start = |_| thread::Builder::new().spawn_scoped(scope, || drop(gate.lock())).map(drop);
        (0..count).try_for_each(start)
    })
}

async fn serve(args: &ServeArgs, place: &Context) -> Result<(), Error> {
    place.tell();
    super::refuse_a_store_of_one_process(&place.store)?;
    place.check_for_locks()?;
    let tls = args.tls_cert.clone().zip(args.tls_key.clone());
    let detail = match place.output {
        Output { verbose: true, .. } => Detail::All,
        Output { quiet: true, .. } => Detail::Quiet,
        _ => Detail::Usual,
    };
    let variable = std::env::var("LATCHWORK_WEBHOOK_LOST").ok().filter(|it| !it.is_empty());
    let webhook = args.webhook_lost.clone().or(variable);
    let settings = Settings::new(place.store.source().clone())
        .with_namespace(place.namespace.clone())
        .with_listen(args.listen.clone())
        .with_tls(tls.map(|(certificate, key)| TlsFiles { certificate, key }))
        .with_tokens(args.tokens.clone())
        .with_seal_key_file(args.seal_key_file.clone())
        .with_require_token(args.require_token)
        .with_allow_hosts(args.allow_host.clone())
        .with_insecure_plain_http(args.insecure_plain_http)
        .with_insecure_no_tokens(args.insecure_no_tokens)
        .with_max_holds(args.max_holds)
        .with_max_waiters(args.max_waiters)
        .with_max_connections(args.max_connections)
        .with_drain(args.drain)
        .with_webhook_lost(webhook)
        .with_json(place.output.json)
        .with_detail(detail);
    latchwork_serve::serve(settings, place.connect().await?).await
}
