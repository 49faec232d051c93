//! A pseudo-terminal with a shell on it, driven as a person would.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, ioctl_tiocsctty, setsid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

use super::{SOON, Store, eventually, pid};

pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";

/// An interactive shell on a terminal of its own. Hung up when dropped.
pub struct Terminal {
    keyboard: File,
    screen: Arc<Screen>,
    shell: Child,
    read: usize,
}

#[derive(Default)]
struct Screen {
    text: Mutex<(String, bool)>,
    news: Condvar,
    /// What a person sees: the same bytes, as a terminal draws them.
    picture: Mutex<vt100::Parser>,
}

impl Terminal {
    /// Starts a shell that finds `latchwork` on its path.
    #[allow(unsafe_code, reason = "pre_exec")]
    pub fn new(store: &Store, shell: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = || -> Stdio {
            let file = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap());
            OwnedFd::from(file.unwrap()).into()
        };
        let binary = std::path::Path::new(env!("CARGO_BIN_EXE_latchwork"));
        let path = format!("{}:{}", binary.parent().unwrap().display(), env!("PATH"));
        let mut command = Command::new(shell[0]);
        command
            .args(&shell[1..])
            .env("PATH", path)
            .env("PS1", "")
            .env("PS2", "")
            .env("ENV", "")
            .env("TERM", "dumb")
            .env("LATCHWORK_STORE", store.url())
            .stdin(slave())
            .stdout(slave())
            .stderr(slave());
        // SAFETY: system calls only.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let screen = Arc::new(Screen::default());
        let keyboard = File::from(master);
        let (mut eyes, shown) = (keyboard.try_clone().unwrap(), screen.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            loop {
                let count = eyes.read(&mut bytes).unwrap_or(0);
                let Ok(mut picture) = shown.picture.lock() else { return };
                picture.process(&bytes[..count]);
                drop(picture);
                let Ok(mut text) = shown.text.lock() else { return };
                text.0.push_str(&String::from_utf8_lossy(&bytes[..count]));
                text.1 = count == 0;
                shown.news.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        let mut terminal = Self { keyboard, screen, shell: child, read: 0 };
        // Without echo, what the screen shows is what the programs say.
        terminal.line("stty -echo; PS1=; echo up-and-'ready'");
        terminal.until("up-and-ready");
        terminal
    }

    pub fn bash(store: &Store) -> Self {
        Self::new(store, &["bash", "--norc", "--noprofile", "--noediting", "-i"])
    }

    pub fn sh(store: &Store) -> Self {
        Self::new(store, &["sh", "-i"])
    }

    /// Presses keys.
    pub fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line.
    pub fn line(&mut self, text: &str) {
        self.keys(&format!("{text}\n"));
    }

    /// Waits until the screen shows `text` after what was read before, and returns the rest of
    /// that line.
    #[track_caller]
    pub fn until(&mut self, text: &str) -> String {
        self.read_to(text, |rest| {
            let length = rest.find('\n')?;
            Some((length + 1, rest[..length].trim().to_owned()))
        })
    }

    /// Waits until the screen shows `text` after what was read before, also on a line that has not ended.
    #[track_caller]
    pub fn shows(&mut self, text: &str) {
        self.read_to(text, |_| Some((0, ())));
    }

    /// Waits until the screen shows `text` and `take` accepts what comes after it: how much of that is read,
    /// and what is returned.
    #[track_caller]
    fn read_to<T>(&mut self, text: &str, take: impl Fn(&str) -> Option<(usize, T)>) -> T {
        let start = Instant::now();
        let mut shown = self.screen.text.lock().unwrap();
        loop {
            let new = &shown.0[self.read..];
            let end = new.find(text).map(|at| at + text.len());
            if let Some((end, (length, taken))) =
                end.and_then(|end| Some((end, take(&new[end..])?)))
            {
                self.read += end + length;
                return taken;
            }
            assert!(!shown.1 && start.elapsed() < 2 * SOON, "no {text:?} in {new:?}");
            shown = self.screen.news.wait_timeout(shown, SOON / 10).unwrap().0;
        }
    }

    /// Waits until the shell's own table shows its job as stopped. A shell learns of a stop later than the
    /// kernel does, and `fg` continues no job that the shell still takes for running.
    #[track_caller]
    pub fn job_is_stopped(&mut self) {
        eventually("a shell that knows of the stop", || {
            let before = self.read;
            self.line("jobs; echo end-of-'jobs'");
            self.until("end-of-jobs");
            self.shown()[before..self.read].contains("Stopped").then_some(())
        });
    }

    /// Everything shown until now.
    pub fn shown(&self) -> String {
        self.screen.text.lock().unwrap().0.clone()
    }

    /// Makes the terminal this large, as a person does who drags a corner of its window.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        let mut picture = self.screen.picture.lock().unwrap();
        picture.set_size(rows.try_into().unwrap(), columns.try_into().unwrap());
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// What a person sees now.
    pub fn picture(&self) -> vt100::Screen {
        self.screen.picture.lock().unwrap().screen().clone()
    }

    /// Waits until a person sees what is wanted.
    #[track_caller]
    pub fn sees<T>(&self, what: &str, mut wanted: impl FnMut(&vt100::Screen) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            let picture = self.picture();
            if let Some(found) = wanted(&picture) {
                return found;
            }
            assert!(start.elapsed() < 2 * SOON, "no {what} on\n{}", picture.contents());
            thread::sleep(SOON / 1_000);
        }
    }

    /// Waits until a person sees this text.
    #[track_caller]
    pub fn sees_text(&self, text: &str) {
        self.sees(text, |screen| screen.contents().contains(text).then_some(()));
    }

    /// Waits until a person sees this text no more.
    #[track_caller]
    pub fn sees_no(&self, text: &str) {
        self.sees("end of it", |screen| (!screen.contents().contains(text)).then_some(()));
    }

    /// How the terminal treats keys and output.
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.keyboard).unwrap()
    }

    /// The shell's own process group.
    pub fn shell(&self) -> Pid {
        Pid::from_child(&self.shell)
    }

    /// Waits until this group is the terminal's foreground group.
    #[track_caller]
    pub fn foreground_becomes(&self, group: Pid) {
        eventually("the foreground group", || {
            tcgetpgrp(&self.keyboard).is_ok_and(|now| now == group).then_some(())
        });
    }

    /// Waits until another group than this is the terminal's foreground group.
    #[track_caller]
    pub fn foreground_leaves(&self, group: Pid) {
        eventually("another foreground group", || {
            tcgetpgrp(&self.keyboard).is_ok_and(|now| now != group).then_some(())
        });
    }

    /// Asks the shell for the exit code of the last command.
    #[track_caller]
    pub fn code(&mut self) -> i32 {
        // A Ctrl-C throws away what is typed right behind it.
        self.foreground_becomes(self.shell());
        self.line("echo code=$?.");
        self.until("code=").trim_end_matches('.').parse().unwrap()
    }

    /// Reads `NAME=number` from the screen.
    #[track_caller]
    pub fn number(&mut self, name: &str) -> Pid {
        pid(self.until(name).parse().unwrap())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
