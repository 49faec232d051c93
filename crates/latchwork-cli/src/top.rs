//! All locks of a store on a terminal, live: what is known of them, what the keys do, and how it is drawn.

pub(crate) mod cells;
pub(crate) mod draw;
pub(crate) mod keys;
pub(crate) mod locks;
pub(crate) mod pace;
pub(crate) mod screen;
pub(crate) mod view;
