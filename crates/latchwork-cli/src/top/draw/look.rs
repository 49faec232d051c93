//! The colours, which are the terminal's own, and what stands for them where there are none.

use ratatui_core::style::{Color, Modifier, Style};

/// How texts look.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) has_colour: bool,
}

impl Look {
    fn coloured(self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(super) fn accent(self) -> Style {
        self.coloured(Color::Cyan)
    }

    pub(super) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn warning(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn alarm(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// A bar that is full as to `part`. A holder renews at two thirds: below a half a renewal is late.
    pub(super) fn bar(self, part: f64, is_closed: bool) -> Style {
        self.coloured(match part {
            _ if is_closed => Color::Blue,
            0.5.. => Color::Green,
            0.25.. => Color::Yellow,
            _ => Color::Red,
        })
    }
}
