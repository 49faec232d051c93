//! Nothing is left in the store a ttl after everything has ended.

use std::collections::HashSet;

use super::{Bounds, Verdict};
use crate::event::What;
use crate::history::History;

pub(super) fn look(history: &History, _: &Bounds) -> Verdict {
    let mut verdict = Verdict::default();
    let inspected = history.events.iter().any(|e| matches!(e.what, What::Inspected { .. }));
    let keys: HashSet<_> = history.attempts.iter().map(|attempt| &attempt.key).collect();
    verdict.checked = if inspected { keys.len() as u64 } else { 0 };
    for event in &history.events {
        if let What::Ghost { name, what } = &event.what {
            verdict.violation(event.at, name, format!("a {what} was left"));
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, TTL};

    fn verdict(story: &Story) -> Verdict {
        look(&story.history(), &Bounds::new(TTL, 2))
    }

    #[test]
    fn the_check_accepts_an_empty_store_and_finds_a_ghost() {
        let mut story = Story::new();
        story.hold("a", "k", 1, 0, 100);
        assert!(!verdict(&story).passed(), "nobody has looked");
        story.at(2_000).run(What::Inspected { entries: 0 });
        assert!(verdict(&story).passed());
        story.run(What::Ghost { name: "k".into(), what: "holder".into() });
        assert_eq!(verdict(&story).violations.len(), 1);
    }
}
