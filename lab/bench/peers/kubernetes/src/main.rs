//! An elector of each crate, driven as its documentation shows: `PEER KUBECONFIG NAMESPACE LEASE ID LOG`.
//!
//! It prints `started`, `leads` and `stopped`. While it takes itself for the leader it appends its id to the log,
//! a line each 2 ms. SIGTERM is the end of a pod.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

type Outcome = Result<(), Box<dyn Error>>;

/// What all of them have by default: that of client-go.
const LEASE: Duration = Duration::from_secs(15);
/// As the documentation of kube-leader-election has it.
const EACH: Duration = Duration::from_secs(5);
const WORK: Duration = Duration::from_millis(2);

struct Args {
    kubeconfig: String,
    namespace: String,
    lease: String,
    id: String,
    log: File,
}

#[tokio::main]
async fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [peer, kubeconfig, namespace, lease, id, log] = &args[..] else {
        return Err("PEER KUBECONFIG NAMESPACE LEASE ID LOG".into());
    };
    rustls::crypto::ring::default_provider().install_default().map_err(|_| "two providers")?;
    let args = Args {
        kubeconfig: kubeconfig.clone(),
        namespace: namespace.clone(),
        lease: lease.clone(),
        id: id.clone(),
        log: OpenOptions::new().create(true).append(true).open(log)?,
    };
    match peer.as_str() {
        "kube-coordinate" => coordinate(args).await,
        "kube-leader-election" => leader_election(args).await,
        _ => Err(format!("{peer}: no such peer").into()),
    }
}

/// Works while it leads, until the process is to end.
async fn work(mut args: Args, leads: impl Fn() -> bool) -> Outcome {
    println!("started");
    let mut term = signal(SignalKind::terminate())?;
    let mut led = false;
    loop {
        let leading = leads();
        if leading != led {
            println!("{}", if leading { "leads" } else { "stopped" });
            led = leading;
        }
        if leading {
            args.log.write_all(format!("{}\n", args.id).as_bytes())?;
        }
        tokio::select! {
            _ = tokio::time::sleep(WORK) => {}
            _ = term.recv() => return Ok(()),
        }
    }
}

async fn coordinate(args: Args) -> Outcome {
    use kube_1::config::{KubeConfigOptions, Kubeconfig};
    let read = Kubeconfig::read_from(&args.kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube_1::Config::from_custom_kubeconfig(read, &options).await?;
    let client = kube_1::Client::try_from(config)?;
    let config = kube_coordinate::Config::default()
        .name(&args.lease)
        .namespace(&args.namespace)
        .identity(&args.id)
        .manager("bench")
        .lease_duration(LEASE);
    let handle = kube_coordinate::LeaderElector::spawn(config, client)?;
    let state = handle.state();
    work(args, || state.borrow().is_leader()).await?;
    // It has nothing that gives the Lease back.
    Ok(handle.shutdown().await?)
}

async fn leader_election(args: Args) -> Outcome {
    use kube_4::config::{KubeConfigOptions, Kubeconfig};
    use kube_leader_election::{LeaseLock, LeaseLockParams, LeaseLockResult};
    let read = Kubeconfig::read_from(&args.kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube_4::Config::from_custom_kubeconfig(read, &options).await?;
    let client = kube_4::Client::try_from(config)?;
    let params = LeaseLockParams {
        holder_id: args.id.clone(),
        lease_name: args.lease.clone(),
        lease_ttl: LEASE,
    };
    let leadership = Arc::new(LeaseLock::new(client, &args.namespace, params));
    let leads = Arc::new(AtomicBool::new(false));
    let looping = tokio::spawn({
        let (leadership, leads) = (leadership.clone(), leads.clone());
        async move {
            loop {
                match leadership.try_acquire_or_renew().await {
                    Ok(done) => {
                        let acquired = matches!(done, LeaseLockResult::Acquired(_));
                        leads.store(acquired, Ordering::Relaxed);
                    }
                    Err(error) => eprintln!("{error}"),
                }
                tokio::time::sleep(EACH).await;
            }
        }
    });
    work(args, || leads.load(Ordering::Relaxed)).await?;
    looping.abort();
    if leads.load(Ordering::Relaxed) {
        leadership.step_down().await?;
    }
    Ok(())
}
