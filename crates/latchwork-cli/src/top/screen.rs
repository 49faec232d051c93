//! The whole terminal, taken for a while and restored as it was: at the end, at a stop, and after a panic.

use std::io::{self, Stdout, Write};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::Show;
use crossterm::execute;
use crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui_core::layout::Rect;
use ratatui_core::terminal::{Frame, Terminal};
use ratatui_crossterm::CrosstermBackend;

/// Whether the terminal is taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, while it is taken.
#[derive(Debug)]
pub(crate) struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    /// Takes the terminal. A panic gives it back before its message is printed.
    pub(crate) fn take() -> io::Result<Self> {
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            report(info);
        }));
        let mut screen = Self(terminal);
        screen.take_again()?;
        Ok(screen)
    }

    /// Takes the terminal again after a stop: a shell, or another program, has used it since.
    pub(crate) fn take_again(&mut self) -> io::Result<()> {
        give_back();
        // Before the modes change: a failure from here on restores the terminal too.
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // Clears it as well. `clear` would ask the terminal for its cursor first, which some never answer.
        let size = self.0.size()?;
        self.0.resize(Rect::from(size))
    }

    /// Draws what has changed.
    pub(crate) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(picture).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back as it was found.
pub(crate) fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // An error cannot be reported here.
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = io::stdout().flush();
    }
}
