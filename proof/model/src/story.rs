//! Stories: lists of steps as text, one in a line, and what each of them changes.

use crate::action::Action;
use crate::properties;
use crate::rules::Quorum;
use crate::state::{Client, Kind, Marker, Node, Phase, State};
use crate::variants::Variant;

/// Reads a story. What follows a `#` is a remark.
///
/// # Errors
///
/// The line that is no step.
pub fn read(text: &str) -> Result<Vec<Action>, String> {
    let steps = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    steps.filter(|step| !step.is_empty()).map(str::parse).collect()
}

/// What became of a story that was told to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The steps that could not be taken, and were left out; counted from 1.
    pub impossible: Vec<usize>,
    /// The property that was violated, and after which step.
    pub violation: Option<(&'static str, usize)>,
}

/// Takes the steps of a story in a model, as far as they can be taken.
pub fn replay(quorum: &Quorum, story: &[Action]) -> Outcome {
    let mut state = quorum.first();
    let mut outcome = Outcome { impossible: Vec::new(), violation: None };
    for (step, action) in (1..).zip(story) {
        match quorum.step(&state, *action) {
            Some(next) => state = next,
            None => outcome.impossible.push(step),
        }
        if let Some(property) = properties::violated(&state) {
            outcome.violation = Some((property, step));
            break;
        }
    }
    outcome
}

/// Writes a story as it is recorded in `stories/`.
pub fn record(variant: &Variant, story: &[Action]) -> String {
    let Outcome { violation, .. } = replay(&variant.model, story);
    let violation = violation.map_or("nothing", |(property, _)| property);
    let steps = write(&variant.model, story);
    format!("# {}: {}.\n# Violates: {violation}.\n\n{steps}", variant.name, variant.about)
}

/// Writes the steps of a story, with what each changes as a remark.
fn write(quorum: &Quorum, story: &[Action]) -> String {
    let mut state = quorum.first();
    let mut text = String::new();
    for action in story {
        let (next, mut remarks) = match quorum.step(&state, *action) {
            Some(next) => (next.clone(), changes(&state, *action, &next)),
            None => (state.clone(), vec!["cannot happen".to_owned()]),
        };
        if let Some(property) = properties::violated(&next) {
            remarks.push(format!("VIOLATED: {property}"));
        }
        let line = format!("{:<26}  # {}", action.to_string(), remarks.join("; "));
        text += line.trim_end_matches([' ', '#']);
        text.push('\n');
        state = next;
    }
    text
}

/// What a step changes, in words.
fn changes(before: &State, action: Action, after: &State) -> Vec<String> {
    let mut changes = Vec::new();
    if before.now != after.now {
        changes.push(format!("it is {}", after.now));
    }
    for (number, (old, new)) in (1..).zip(before.nodes.iter().zip(&after.nodes)) {
        changes.extend(node(old, new).into_iter().map(|what| format!("node {number} {what}")));
    }
    for (number, (old, new)) in (1..).zip(before.clients.iter().zip(&after.clients)) {
        changes.extend(client(old, action, new).map(|what| format!("client {number} {what}")));
    }
    match action {
        Action::Try { .. } | Action::Renew { .. } => changes.push("asks all nodes".to_owned()),
        Action::Deliver { node, kind, claim } | Action::DeliverUnheard { node, kind, claim }
            if !after.nodes[node].holds(claim) =>
        {
            match kind {
                Kind::Try | Kind::Plant => changes.push("refuses".to_owned()),
                Kind::Confirm | Kind::Renew => changes.push("does not have it".to_owned()),
                Kind::Release => {}
            }
        }
        _ => {}
    }
    changes
}

fn node(old: &Node, new: &Node) -> Vec<String> {
    let mut changes = Vec::new();
    if old.key != new.key {
        changes.push(match new.key {
            Some(key) => format!("has {} until {}", key.claim, key.until),
            None => "is free".to_owned(),
        });
    }
    if old.largest != new.largest {
        changes.push(format!("remembers token {}", new.largest));
    }
    if old.marker != new.marker {
        changes.push(match new.marker {
            Marker::Missing => "has no marker".to_owned(),
            Marker::EarlierLife => "has the marker of an earlier life".to_owned(),
            Marker::Closed(born) => format!("is in quarantine since {born}"),
            Marker::Open | Marker::Served => "grants freely".to_owned(),
        });
    }
    changes
}

fn client(old: &Client, action: Action, new: &Client) -> Option<String> {
    let was_held = matches!(old.phase, Phase::Held { .. } | Phase::Renewing { .. });
    match new.phase {
        _ if old.phase == new.phase => None,
        Phase::Idle if action == Action::Tick && was_held => Some("has lost the key".to_owned()),
        Phase::Idle if action == Action::Tick => Some("gives up: it is too late".to_owned()),
        Phase::Confirming { token, .. } => Some(format!("lets token {token} be confirmed")),
        Phase::Held { until, .. } if was_held => Some(format!("goes on holding until {until}")),
        Phase::Held { until, token } => Some(format!("holds until {until} with token {token}")),
        Phase::Idle | Phase::Trying { .. } | Phase::Renewing { .. } => None,
    }
}
