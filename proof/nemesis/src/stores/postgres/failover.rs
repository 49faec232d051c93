//! A primary and a standby that follows it asynchronously, and how one takes the other's place.

use std::time::Duration;

use latchwork_services::{Cut, Error, PostgresServer, Result};

use super::roomy;
use super::server::Writable;
use crate::pause::pause;
use crate::stores::ServerLog;
use crate::stores::network::Ways;

/// How often, and how many times, the standby is asked whether it still receives something.
const LOOKS: (Duration, u32) = (Duration::from_millis(10), 1_000);

/// Both servers.
#[derive(Debug)]
pub(super) struct Pair {
    primary: PostgresServer,
    /// None only while one takes the other's place.
    standby: Option<PostgresServer>,
    /// Which of the two ways leads to the primary.
    at: usize,
    /// What the servers printed that are gone.
    ended: Vec<ServerLog>,
}

impl Writable for Pair {
    fn writable(&mut self) -> &mut PostgresServer {
        &mut self.primary
    }
}

impl Pair {
    /// Starts both. Returns their ports, too.
    pub(super) fn start() -> Result<(Self, [u16; 2])> {
        let primary = PostgresServer::start_with(&roomy())?;
        let standby = primary.copy(true)?;
        let ports = [primary.port(), standby.port()];
        Ok((Self { primary, standby: Some(standby), at: 0, ended: Vec::new() }, ports))
    }

    /// The primary serves its clients for a while without its standby, and dies. The standby is
    /// promoted without what was written meanwhile.
    pub(super) fn fail_over(&mut self, ways: &Ways, lag: Duration) -> Result<()> {
        let standby = self.detach()?;
        pause(lag);
        self.succeed(standby);
        promote(&self.primary)?;
        self.at = 1 - self.at;
        self.follow(ways)
    }

    /// The standby is promoted while the primary goes on serving the half of the workers that
    /// stays with it. After a while the old primary is ended.
    pub(super) fn split(&mut self, ways: &Ways, stays: usize, length: Duration) -> Result<()> {
        let (old, new) = (self.at, 1 - self.at);
        let closed = [&ways.sides[1 - stays][old], ways.own(old), &ways.sides[stays][new]];
        let standby = self.detach()?;
        for way in closed {
            way.refuse_connections()?;
            way.cut(Cut::Reset)?;
        }
        let promoted = promote(&standby);
        if promoted.is_ok() {
            pause(length);
        }
        self.succeed(standby);
        self.at = new;
        for way in closed {
            way.accept_connections()?;
        }
        promoted?;
        self.follow(ways)
    }

    /// The primary ends, and its standby is the primary from now on.
    fn succeed(&mut self, standby: PostgresServer) {
        let old = std::mem::replace(&mut self.primary, standby);
        self.ended.push(ServerLog::of(format!("postgres-{}", self.ended.len()), &old));
    }

    /// What all servers have printed, in the order in which they were primaries.
    pub(super) fn logs(&self) -> Vec<ServerLog> {
        let now = [Some(&self.primary), self.standby.as_ref()].into_iter().flatten();
        let numbered = (self.ended.len()..).zip(now);
        let now = numbered.map(|(n, it)| ServerLog::of(format!("postgres-{n}"), it));
        self.ended.iter().cloned().chain(now).collect()
    }

    /// Takes the standby away from the primary: it gets nothing of what is written from now on.
    fn detach(&mut self) -> Result<PostgresServer> {
        let standby = self.standby.take().ok_or_else(|| Error::new("there is no standby"))?;
        standby.psql("ALTER SYSTEM SET primary_conninfo = ''")?;
        standby.psql("SELECT pg_reload_conf()")?;
        for _ in 0..LOOKS.1 {
            if standby.psql("SELECT count(*) FROM pg_stat_wal_receiver")? == "0" {
                return Ok(standby);
            }
            pause(LOOKS.0);
        }
        Err(Error::new("the standby does not leave its primary"))
    }

    /// Starts a new standby, where the old primary was.
    fn follow(&mut self, ways: &Ways) -> Result<()> {
        let standby = self.primary.copy(true)?;
        ways.lead(1 - self.at, standby.port());
        self.standby = Some(standby);
        Ok(())
    }
}

fn promote(standby: &PostgresServer) -> Result<()> {
    let answer = standby.psql("SELECT pg_promote()")?;
    let promoted = if answer == "t" { Some(()) } else { None };
    promoted.ok_or_else(|| Error::new(format!("the promotion answered {answer:?}")))
}
