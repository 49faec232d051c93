//! The help behind the options: what a command promises, its exit codes, examples.

pub(super) const ALL: &str = "\
Examples:
  latchwork run nightly -- ./backup.sh          wait for the lock, run, release
  latchwork run --wait 0 nightly -- ./backup.sh run now or not at all (exit 75)
  latchwork once --every 1d report -- ./report  once a day, on one of the hosts
  held=$(latchwork hold nightly) && eval \"$held\" || exit
                                                for several commands of a script
  latchwork elect scheduler -- ./scheduler      on the one host that leads
  latchwork resize exports 5                    five permits from now on
  latchwork status nightly && echo busy         is it held?
  latchwork show nightly                        its holder and its waiters
  latchwork ls --watch                          all locks in use, again each second
  latchwork top                                 all locks in use, live on the terminal
  latchwork doctor                              can the store keep locks safely?
  latchwork help postgres                       a page of the book; `help help` lists them

The store is the first that is given: --store, --store-file or --store-command,
LATCHWORK_STORE, LATCHWORK_STORE_FILE, LATCHWORK_STORE_COMMAND,
~/.config/latchwork/store, /etc/latchwork/store, and else a directory of this user. A
store file has the URL on one line; write a URL with a
password there, because all users can read command lines. A path that begins with / or
./ is a directory.

Exit codes:
  64 usage, 69 store unreachable, 70 broken, 71 store not fit for locks (doctor),
  73 lock lost and command ended, 75 lock not free in time, 77 denied,
  78 in use as another kind of lock;
  run passes the command's own code back: 126 not executable, 127 not found,
  128 + n ended by signal n";

pub(super) const MAX_HOLD_OF_SHELL: &str = "The longest time to hold the lock. The shell gets the signal of --on-loss \
     early enough to stop by then";

pub(super) const LOCK_DELAY_OF_SHELL: &str = "Keep the lock closed for this long after a hold that ended without a \
     release: the machine died, the keeper could not reach the store, --max-hold was exceeded, or the shell ended \
     without `latchwork release`";

pub(super) const HOLDER_OF_SHELL: &str = "Description of the holder, shown by `ls` and `show` [default: user, host, \
     process, and the shell]";

pub(super) const WAIT_OF_ONCE: &str = "If another host runs the task, wait this long for it to succeed or fail; also \
     for a store that does not answer [env: LATCHWORK_WAIT] [default: 0]";

pub(super) const RUN: &str = "\
The command finds LATCHWORK_KEY and LATCHWORK_TOKEN in its environment, and the store
in LATCHWORK_STORE, LATCHWORK_STORE_FILE or LATCHWORK_STORE_COMMAND, never with a password. Give the token to
the resource that the lock protects, and let it refuse a smaller token than it has
seen. Several locks have one key and one token on each line, in the same order.

Everyone who uses a name must use it as the same kind of lock: a plain one, one with
--read and --write, or one with --permits of the same number. With --resize to-mine,
--permits of another number are taken if all that are held fit into that number, and
with --resize follow if they fit into the number that the lock has.

The -- may be left out after a single name. A command that holds a lock and runs
`latchwork run` for the same name would wait for itself: that exits with 64, unless
--inherit says to run under the outer hold. The command is then ended when the outer
hold is lost or its holder dies; until the command ends, the outer hold is not released.
--inherit refuses --ttl, --lock-delay and --holder under an outer hold, and obeys
--max-hold.

The command runs in a process group of its own. If the lock is lost, the whole
group gets SIGTERM, then SIGKILL, before another holder can get the lock (exit 73);
if latchwork itself is killed, the group is killed with it. The lock is released
when the command ends; processes that it left in the background run on without it.
After a SIGTERM, SIGINT, SIGHUP or SIGQUIT was passed on to the command, the rest of
its group has 10 s to clean up before the lock is released.
Not covered: processes that leave the group (setsid, daemons) or become another user
(sudo: run latchwork under sudo instead).

Examples:
  latchwork run nightly -- ./backup.sh --full
  latchwork run nightly ./backup.sh --full
  latchwork run nightly -c 'date && ./backup.sh > log'
  latchwork run --wait 5 deploy -- make deploy
  latchwork run --wait 0 -E 0 report -- ./report  skip it if it runs already
  latchwork run --ttl 1m --max-hold 1h report -- ./report
  latchwork run --permits 1/3 export -- ./export  three at a time
  latchwork run -- -odd-name -- ./job             a name that begins with a dash
  latchwork run --read index -- ./search          while nobody runs with --write
  latchwork run stock orders -- ./reconcile       both or none
  latchwork --store file:///srv/locks run import -- ./import";

pub(super) const HOLD: &str = "\
Prints lines for a POSIX shell and returns. A keeper process in the background renews
the lock until `latchwork release`, or until the shell that evaluates these lines ends,
also if it is killed. If no shell evaluates them within 10 s, the lock is released.

If the lock is lost, the shell gets SIGTERM (--on-loss), early enough to stop before
another holder can get the lock. Unlike `run`, nothing kills the commands of the script
then, and if somebody kills the keeper, nobody tells the shell: prefer `run` where one
command does all the work, or run it with `latchwork run --inherit`. With --lock-delay, only `latchwork release` opens the lock at
once.

`|| exit` is needed, as is the assignment before the eval: an eval alone succeeds if
`latchwork` is not installed or was killed, and the script would go on without the lock.

The commands of the shell find LATCHWORK_KEY and LATCHWORK_TOKEN of its newest hold in
their environment. The variables stay set after a release and after a loss: they do not
prove that the lock is held.

`latchwork upgrade` makes a hold of --read one of --write, `latchwork downgrade` the other
way round.

Examples:
  held=$(latchwork hold nightly) && eval \"$held\" || exit
  ./dump && ./upload --token \"$LATCHWORK_TOKEN\"
  latchwork release

  held=$(latchwork hold --wait 5 stock orders) && eval \"$held\" || exit
  held=$(latchwork hold --on-loss none --pid $PPID nightly) && eval \"$held\" || exit";

pub(super) const WAIT_OF_UPGRADE: &str = "How long to wait for the other readers to release: 5 (seconds), 500ms, 2m, 1h30m; \
     0 tries once [env: LATCHWORK_WAIT] [default: forever]";

pub(super) const UPGRADE: &str = "\
Waits until the other readers have released, and admits no new one meanwhile. The shell
holds the lock for reading until it holds it for writing, so what it has read is still
true. If the upgrade fails, it still holds the lock for reading.

Prints lines for the shell to evaluate, as `hold` does: they set LATCHWORK_KEY and
LATCHWORK_TOKEN, which is larger than before. With --json it prints the key, the mode and
the token instead.

One reader of a lock can upgrade at a time. If another one is waiting for it, the exit
code is 75 at once, and the error has the kind UpgradeConflict: each would wait for the
other, so release this hold, then take one with --write.

Exit codes: 75 other readers still hold the lock, or another one is upgrading; 64 the
shell does not hold the lock for reading, or the store cannot upgrade; 73 lock lost.

Examples:
  held=$(latchwork hold --read index) && eval \"$held\" || exit
  ./is-fresh || { held=$(latchwork upgrade --wait 1m index) && eval \"$held\" && ./rebuild; }";

pub(super) const DOWNGRADE: &str = "\
Does not wait, and other readers are admitted when it returns. Nobody can write in
between. While a command runs under the hold (`run --inherit`), the exit code is 75.

Prints lines for the shell to evaluate, as `latchwork upgrade` does.

Examples:
  held=$(latchwork downgrade index) && eval \"$held\"";

pub(super) const ONCE: &str = "\
For a task that a scheduler starts on several hosts at the same time. One host runs it.
The others exit with 0; with -v they print which host ran it, when (by the clock of that
host), and when the next run is possible. If the command exits with 0, its period is
closed: nobody runs the task again before the period is over. If the command fails, is ended, or
was asked to end by a signal such as Ctrl-C (even if it exits with 0 then), the task is open again
at once; if its host dies, after the ttl.

With the five fields of cron, an hour that the end of daylight saving time repeats counts once, or
in both passes if minute or hour has a `*`.

A task that is closed until a moment other than the end of its period exits with 78:
it was run with another period, or on a host whose clock was wrong. --reset opens a
closed task and runs nothing; --force runs the task although it was done. Neither
touches a run that is under way: its holder is named (exit 75).

If the store does not answer at the end, latchwork tries to close the period until the
ttl is over, and exits with 69 if it could not: the task may then be done again. A
store that may have lost its records (quarantine) grants nothing for a while: that exits
with 75, also without --must-run, because nobody can tell whether the task was done.

Use a name that no `run`, `hold` or `elect` uses: while one of them holds the name, the
task counts as running.
The command runs as under `run`, with the same environment, signals and exit codes.

In a crontab, the same line on three hosts:
  0 2 * * *  latchwork --store redis://locks once --every 1d --tz Europe/Berlin report -- ./report

Examples:
  latchwork once --every 1d --tz Europe/Berlin report -- ./report
  latchwork once --every 15m mails -- ./send-mails
  latchwork once --every 1mo --wait 1h bills -- ./bills   take over if the other host fails
  latchwork once --every 1d --force report -- ./report    again, although it was done
  latchwork once --reset report                           open it before its period is over";

pub(super) const ELECT: &str = "\
Waits until this candidate leads, and runs the command. When the command ends,
latchwork resigns and exits with the command's code. If the leadership is lost, the
command is ended as under `run`, and latchwork campaigns again, also while the store
is unreachable; only the first connection must succeed. After a SIGTERM, SIGINT or
SIGQUIT it does not campaign again: it ends by that signal.
LATCHWORK_TOKEN is the term: the leader's writes should carry it. There is no
--lock-delay: a candidate campaigns again after a loss, and its own delay would keep it
out as well. If the resource cannot check a token, use `run --lock-delay`.

Examples:
  latchwork elect --candidate 10.0.0.7:8080 scheduler -- ./scheduler
  latchwork elect --observe scheduler            who leads, and each change";

pub(super) const LS: &str = "\
With --json it prints one array, also if it is empty; with --watch, one array a line.

Examples:
  latchwork ls
  latchwork --json ls shop/
  latchwork ls --watch=5s";

#[cfg(feature = "top")]
pub(super) const TOP: &str = "\
Each row is a lock: its name, its kind, its holder, how long it has been held, its token,
the time left of its ttl, and how many wait for it. The bar drains to the end of the
ttl, and a renewal fills it. Below the table are the holders and the queue of the
selected lock. The key ? lists the keys; q quits.

`top` reads all locks once a second. With many locks, or a slow store, it reads them less
often, so that it reads at most 1,000 locks a second and spends at most a tenth of the
time on it; the locks on the screen are still read each second. It takes no lock and
changes nothing. While the store does not answer, it says so and asks again.

With NO_COLOR in the environment, it uses no colour. In a script, use `ls --watch`.

Examples:
  latchwork top
  latchwork top shop/
  latchwork --store redis://locks top";

pub(super) const SHOW: &str = "\
Examples:
  latchwork show nightly
  latchwork --json show nightly report";

pub(super) const STATUS: &str = "\
Prints `held`, `free`, or `done` for a task of `once` whose period is closed; nothing
with --quiet. With -v, standard error says who did that task, and when (in UTC).

Exit codes: 0 held, 1 free, 2 done; 64 and more as for other commands.

Examples:
  latchwork status nightly
  if latchwork --quiet status nightly; then echo 'the backup runs'; fi";

pub(super) const RELEASE: &str = "\
Without --force, releases what `latchwork hold` took for this shell: all, or those that
are named, also if one `hold` took more. In a subshell, name the shell: --pid $$. Exits with 73 if the lock was lost
before, and with 75 while a command runs under it (`run --inherit`): nothing is released then.

With --force, takes locks away from any holder. The holder learns that it lost the lock
(a command under `run` is ended, exit 73). The lock's token moves on, so that a resource
which checks tokens refuses the old holder.

Examples:
  latchwork release
  latchwork release --force nightly
  latchwork release --force stock orders";

pub(super) const RESIZE: &str = "\
Changes the number of permits for all who hold some or wait for some. A waiter that fits
now is admitted. Nobody is evicted: if more permits are held than there are now, nobody
is admitted until enough of them are released. A lock that nobody uses has no number to
change: the next user brings its own.

A later claim with another number is refused (exit 78), unless with --resize: `follow`
goes by the number that was set here, `to-mine` sets its own again.

Examples:
  latchwork resize exports 5
  latchwork run --permits 1/3 --resize to-mine exports -- ./export
  latchwork run --permits 1/3 --resize follow exports -- ./export";

pub(super) const DOCTOR: &str = "\
Each finding has a severity (ok, info, warning, critical), a consequence (`then`) and a
remedy (`do`). `doctor` takes no lock. Exits with 71 if something critical was found,
else with 0.

Examples:
  latchwork doctor
  latchwork --store file:///srv/locks doctor
  latchwork --json doctor";

pub(super) const INIT: &str = "\
Run it when you set up a store and know that no lock is held there. It makes a directory with
all that belongs into it; otherwise the first lock does so. Where a directory is shared and has
the sticky bit, run it as the owner.

Examples:
  latchwork --store file:///srv/locks init";

#[cfg(feature = "serve")]
pub(super) const SERVE: &str = "\
Clients take, renew and release locks by HTTP: `latchwork help service` and GET /openapi.json
describe it. On this machine they need no token; for other hosts the service demands TLS and tokens.
With the same --seal-key-file, several instances at one store renew and release each other's holds, but
not on ZooKeeper; without it, holds end with the process. SIGTERM stops it when the
holds that end with it have ended. SIGHUP reads tokens, seal keys, certificates and the login again. The log goes to standard error, with --json as JSON.

Examples:
  latchwork serve
  latchwork --store redis://locks serve --listen unix:/run/latchwork/http.sock
  latchwork serve --listen 0.0.0.0:7117 --tls-cert cert.pem --tls-key key.pem --tokens tokens.json
  curl -sX POST localhost:7117/v1/locks/nightly
  curl -sX DELETE localhost:7117/v1/holds/$HOLD";

pub(super) const COMPLETIONS: &str = "\
Examples:
  latchwork completions bash > ~/.local/share/bash-completion/completions/latchwork
  latchwork completions zsh > ~/.zfunc/_latchwork
  latchwork completions fish > ~/.config/fish/completions/latchwork.fish";

pub(super) const HELP: &str = "\
Pages:
  command exit-codes settings passwords glossary
  choosing-a-store choosing-a-ttl failure-modes fencing observing moving
  files redis failover guard redlock etcd zookeeper kubernetes postgres tls
  cron deployment leader service proxy python

Examples:
  latchwork help run
  latchwork help postgres | less";

pub(super) const MAN: &str = "\
Examples:
  latchwork man | man -l -
  latchwork man run | man -l -
  latchwork man --dir ~/.local/share/man/man1";
