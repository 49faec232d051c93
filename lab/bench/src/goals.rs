//! Goals: what a number should be, and whether it is.
//!
//! A goal is one cell of a table, in a form that is read again when the goals of all tables are
//! brought together: the tables say everything, and nothing is kept beside them.

use std::fmt::{self, Display, Formatter};

use crate::stats::number;

/// The title of the columns that have goals.
const TITLE: &str = "goal";
/// Between several goals in one cell.
const AND: &str = "; ";
const HOLDS: &str = "holds";
const MISSED: &str = "MISSED by ";

/// What a number should be.
#[derive(Clone)]
pub(crate) struct Goal {
    of: String,
    unit: &'static str,
    sign: &'static str,
    wanted: f64,
}

macro_rules! signs {
    ($($name:ident $sign:literal)*) => {
        $(pub(crate) fn $name(wanted: f64) -> Self {
            Self { of: String::new(), unit: "", sign: $sign, wanted }
        })*
    };
}

fn is_met(sign: &str, reached: f64, wanted: f64) -> bool {
    match sign {
        ">=" => reached >= wanted,
        ">" => reached > wanted,
        "<=" => reached <= wanted,
        _ => reached < wanted,
    }
}

impl Goal {
    signs! { at_least ">=" above ">" at_most "<=" below "<" }

    /// What it is about, where that is not the ratio beside it.
    pub(crate) fn of(self, what: impl Into<String>) -> Self {
        Self { of: what.into() + " ", ..self }
    }

    pub(crate) fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// The cell: the goal, what was reached, and whether that is enough.
    pub(crate) fn judge(&self, reached: f64) -> Verdict {
        let Self { of, unit, sign, wanted } = self;
        let short = if sign.starts_with('>') { wanted - reached } else { reached - wanted };
        let missed_by = (!is_met(sign, reached, *wanted)).then(|| match 100.0 * short / wanted {
            percent if percent < 0.5 => "less than 1 %".to_string(),
            percent if percent.is_finite() => format!("{percent:.0} %"),
            _ => "all".to_string(),
        });
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        Verdict {
            goal: format!("{of}{sign} {wanted}{unit}"),
            reached: number(reached) + &unit,
            missed_by,
        }
    }
}

/// A goal, and what came of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) goal: String,
    pub(crate) reached: String,
    pub(crate) missed_by: Option<String>,
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, ", self.goal, self.reached)?;
        match &self.missed_by {
            None => f.write_str(HOLDS),
            Some(by) => write!(f, "{MISSED}{by}"),
        }
    }
}

impl Verdict {
    fn parse(text: &str) -> Option<Self> {
        let (goal, rest) = text.rsplit_once(": ")?;
        let (reached, end) = rest.rsplit_once(", ")?;
        let missed_by = match end.strip_prefix(MISSED) {
            Some(by) => Some(by.to_string()),
            None if end == HOLDS => None,
            None => return None,
        };
        Some(Self { goal: goal.to_string(), reached: reached.to_string(), missed_by })
    }
}

/// The number at the beginning of what was reached.
pub(crate) fn value(reached: &str) -> f64 {
    reached.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}

/// How far what was reached is on the right side of a goal, as a ratio: below 1 it is missed.
pub(crate) fn margin(goal: &str, reached: &str) -> f64 {
    let words: Vec<&str> = goal.split(' ').collect();
    let reached = value(reached);
    let sign = words.iter().position(|word| [">=", ">", "<=", "<"].contains(word));
    let Some((sign, Ok(wanted))) =
        sign.and_then(|at| Some((words[at], words.get(at + 1)?.parse::<f64>())))
    else {
        return 0.0;
    };
    let ratio = if sign.starts_with('>') { reached / wanted } else { wanted / reached };
    match is_met(sign, reached, wanted) {
        true if ratio.is_finite() && ratio >= 1.0 => ratio,
        // Nothing where nothing is allowed, or less than nothing.
        true => f64::INFINITY,
        false if ratio.is_finite() => ratio.clamp(0.0, 1.0 - f64::EPSILON),
        false => 0.0,
    }
}

/// The cell of several goals, or of none.
pub(crate) fn cell(verdicts: &[Verdict]) -> String {
    match verdicts {
        [] => "-".into(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(AND),
    }
}

/// A goal that a table tells of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// The line above the table.
    pub(crate) setting: String,
    /// The first cell of its row.
    pub(crate) what: String,
    pub(crate) verdict: Verdict,
}

/// The goals that tables tell of, in their order.
///
/// # Errors
///
/// A cell in a column of goals that is none.
pub(crate) fn told(markdown: &str) -> Result<Vec<Told>, String> {
    let (mut setting, mut columns, mut goals) = (String::new(), None, Vec::new());
    for line in markdown.lines() {
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else {
            columns = None;
            match line.strip_suffix(':') {
                Some(text) => setting = text.to_string(),
                // A table may come after an empty line.
                None if line.is_empty() => {}
                None => setting.clear(),
            }
            continue;
        };
        let cells: Vec<&str> = cells.split(" | ").collect();
        let Some(columns) = &columns else {
            let is_goal = |title: &&str| *title == TITLE;
            columns = Some(cells.iter().map(is_goal).collect::<Vec<_>>());
            continue;
        };
        for (cell, _) in cells.iter().zip(columns).filter(|(_, is_goal)| **is_goal) {
            if ["---", "-"].contains(cell) {
                continue;
            }
            for text in cell.split(AND) {
                let what = cells[0].to_string();
                let verdict = Verdict::parse(text).ok_or(format!("{what}: no goal: {text:?}"))?;
                goals.push(Told { setting: setting.clone(), what, verdict });
            }
        }
    }
    Ok(goals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_says_what_was_reached_and_by_how_much_it_was_missed() {
        let cell = |goal: Goal, reached| goal.judge(reached).to_string();
        assert_eq!(cell(Goal::at_least(5.0), 54.03), ">= 5: 54.03, holds");
        assert_eq!(cell(Goal::at_least(4.0), 2.87), ">= 4: 2.87, MISSED by 28 %");
        assert_eq!(cell(Goal::at_most(0.5), 0.74), "<= 0.5: 0.74, MISSED by 48 %");
        assert_eq!(cell(Goal::below(1.0), 1.0), "< 1: 1.00, MISSED by less than 1 %");
        assert_eq!(cell(Goal::above(0.95).of("Jain"), 0.96), "Jain > 0.95: 0.96, holds");
        let memory = Goal::below(2.0).of("memory").unit("kB");
        assert_eq!(cell(memory, 1.37), "memory < 2 kB: 1.37 kB, holds");
        assert_eq!(cell(Goal::at_least(2.0), f64::NAN), ">= 2: NaN, MISSED by all");
        assert_eq!(
            (Verdict::parse(">= 5: holds"), Verdict::parse("more: 3, perhaps")),
            (None, None)
        );
    }

    #[test]
    fn a_margin_says_how_near_a_goal_is() {
        for (goal, reached, wanted) in [
            (">= 5", "10.00", 2.0),
            ("CPU < 2 %", "4.00 %", 0.5),
            ("memory <= 64 kB", "32.00 kB", 2.0),
            ("failures <= 0", "0.00", f64::INFINITY),
            ("failures <= 0", "3.00", 0.0),
            (">= 5", "NaN", 0.0),
            ("exponent <= 0.25", "-0.10", f64::INFINITY),
        ] {
            assert_eq!(margin(goal, reached), wanted, "{goal} {reached}");
        }
        assert!(margin("< 1", "1.00") < 1.0);
    }

    #[test]
    fn a_results_table_shows_its_goal() {
        let verdicts = [Goal::above(0.95).of("Jain").judge(1.0), Goal::at_most(5.9).judge(2.0)];
        let text = format!(
            "8 processes, one key:\n\n| what | goal | rate |\n| --- | --- | --- |\n\
             | latchwork | {} | 7 |\n| floor | - | 9 |\n| other | {} | 3 |\n\n\
             | what | rate |\n| --- | --- |\n| more | >= 9 |\n",
            cell(&verdicts),
            cell(&[Goal::at_least(5.0).judge(2.5)]),
        );
        let goals = told(&text).unwrap();
        let seen: Vec<_> =
            goals.iter().map(|it| (&*it.what, it.verdict.missed_by.as_deref())).collect();
        assert_eq!(seen, [("latchwork", None), ("latchwork", None), ("other", Some("50 %"))]);
        assert!(goals.iter().all(|it| it.setting == "8 processes, one key"), "{goals:?}");
        let spoiled = text.replace(">= 5: 2.50", ">= 5");
        assert!(told(&spoiled).unwrap_err().contains("other"));
    }
}
