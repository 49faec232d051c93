//! The pages that operators take over: the dashboard, the alerts and the table of metrics name only
//! what the observer emits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use latchwork::observers::Metrics;
use latchwork::{Event, FencingToken, Lost, LostReason, Observer};
use latchwork_store::BackendErrorKind::Unreachable;
use latchwork_store::{BackendError, Blocked, Cause, Effect, Key, Moment};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use serde_json::Value;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn dashboard() -> Value {
    serde_json::from_str(&file("packaging/grafana/latchwork.json")).unwrap()
}

fn alerts() -> String {
    file("packaging/prometheus/latchwork-alerts.yml")
}

/// What the exporter writes when each event was told once, with a label for the store.
fn scraped() -> String {
    let latchwork = Matcher::Prefix("latchwork_".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(latchwork, Metrics::BUCKETS);
    let recorder = builder.unwrap().build_recorder();
    let text = recorder.handle();
    metrics::with_local_recorder(&recorder, || {
        let observer = Metrics::new().with_label("store", "mem:");
        let key = &Key::new("k").unwrap();
        let (token, length) = (FencingToken::from_grant(1), Duration::from_millis(5));
        let (waited, took, late, held, remaining) = (length, length, length, length, length);
        let error = &BackendError::new(Unreachable, Effect::Unknown, "no answer");
        let mut events = vec![
            Event::WaitBegan { key },
            Event::WaitEnded { key, waited, admitted: false },
            Event::TryFailed { key, error },
            Event::Acquired { key, token, waited, contended: true },
            Event::Acquired { key, token, waited, contended: false },
            Event::HandedOver { key, from: token, token, held },
            Event::Received { key, token, waited },
            Event::Renewed { key, token, took, late, remaining },
            Event::RenewFailed { key, token, error, remaining },
            Event::Suspect { key, token },
            Event::ClockStepped { key, by: 1 },
            Event::ClockUnsteady { key, ratio: 2.0 },
            Event::Released { key, token, held },
            Event::Settled { key },
            Event::ReleaseFailed { key, held: None, error },
        ];
        let blocked = Blocked::by(Cause::Held);
        events.push(Event::Waiting { key, blocked: &blocked });
        for reason in
            [LostReason::Expired, LostReason::Taken, LostReason::SessionEnded, LostReason::MaxHold]
        {
            let lost = Lost::new(reason, Moment::from_nanos(1));
            events.push(Event::Lost { key, token, lost, held });
        }
        for event in events {
            observer.event(&event);
        }
    });
    text.render()
}

/// A word of letters, digits and `_` at the start of a text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// The metrics that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    text.match_indices("latchwork_").map(|(at, _)| word(&text[at..])).collect()
}

/// The names, and the labels with their values, of all series.
fn series(scraped: &str) -> (BTreeSet<&str>, BTreeMap<&str, BTreeSet<&str>>) {
    let lines = scraped.lines().filter(|line| line.starts_with("latchwork_"));
    let names = lines.clone().map(word).collect();
    let mut labels: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for line in lines {
        let inside = line.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
        for pair in inside.map_or("", |(inside, _)| inside).split(',').filter(|it| !it.is_empty()) {
            let (label, value) = pair.split_once('=').unwrap();
            labels.entry(label).or_default().insert(value.trim_matches('"'));
        }
    }
    (names, labels)
}

/// Checks the names of metrics and labels in an expression, and the values that it asks for.
fn check(expression: &str, scraped: &str) {
    let (names, mut labels) = series(scraped);
    // What Prometheus itself adds.
    for of_the_target in ["job", "instance"] {
        labels.entry(of_the_target).or_default();
    }
    let metrics = named(expression);
    assert!(!metrics.is_empty(), "no metric in {expression}");
    for metric in metrics {
        assert!(names.contains(metric), "nobody emits {metric}, in {expression}");
    }
    for lists in ["by (", "on ("] {
        for (at, _) in expression.match_indices(lists) {
            let list = expression[at + lists.len()..].split_once(')').unwrap().0;
            for label in list.split(',').map(str::trim) {
                assert!(labels.contains_key(label), "no label {label}, in {expression}");
            }
        }
    }
    for matchers in expression.split('{').skip(1).map(|rest| rest.split_once('}').unwrap().0) {
        for matcher in matchers.split(',').map(str::trim) {
            let label = word(matcher);
            let value = matcher.split('"').nth(1).unwrap();
            let values = labels.get(label).unwrap_or_else(|| panic!("no label {label}"));
            let known = value.starts_with('$') || values.contains(value);
            assert!(known, "no {label} is {value}, in {expression}");
        }
    }
}

#[test]
fn the_dashboard_uses_emitted_metrics_only() {
    let (dashboard, scraped) = (dashboard(), scraped());
    let mut expressions = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            check(target["expr"].as_str().unwrap(), &scraped);
            expressions += 1;
        }
    }
    assert!(expressions > 20, "{expressions}");
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            check(variable["query"]["query"].as_str().unwrap(), &scraped);
        }
    }
}

#[test]
fn the_dashboard_is_valid_for_grafana() {
    let dashboard = dashboard();
    for text in ["title", "uid", "refresh"] {
        assert!(dashboard[text].as_str().is_some_and(|it| !it.is_empty()), "{text}");
    }
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36);
    assert_eq!(dashboard["id"], Value::Null, "the server gives it");
    assert!(dashboard["time"]["from"].is_string() && dashboard["time"]["to"].is_string());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(
        (&variables[0]["name"], &variables[0]["type"]),
        (&"datasource".into(), &"datasource".into())
    );
    assert_eq!(variables[0]["query"], "prometheus");
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is used twice");
        let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is too wide");
        for (x, y) in (at("x")..at("x") + at("w"))
            .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(taken.insert((x, y)), "{title} lies over another panel");
        }
        if panel["type"] == "row" {
            assert_eq!(panel["panels"], Value::Array(Vec::new()));
            continue;
        }
        assert!(["stat", "timeseries"].contains(&panel["type"].as_str().unwrap()), "{title}");
        assert!(panel["description"].as_str().is_some_and(|it| it.ends_with('.')), "{title}");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
        assert!(panel["options"].is_object() && panel["fieldConfig"]["overrides"].is_array());
        let targets = panel["targets"].as_array().unwrap();
        let mut letters = BTreeSet::new();
        for part in [panel].into_iter().chain(targets) {
            assert_eq!(part["datasource"]["type"], "prometheus", "{title}");
            assert_eq!(part["datasource"]["uid"], "${datasource}", "{title}");
        }
        for target in targets {
            assert!(letters.insert(target["refId"].as_str().unwrap()), "{title}");
            assert!(target["legendFormat"].is_string(), "{title}");
        }
    }
}

/// The rules: what stands between two lines that begin one.
fn rules(alerts: &str) -> Vec<&str> {
    alerts.split("\n      - alert: ").skip(1).collect()
}

/// The value of a field of a rule, with the lines below it that are indented further.
fn field(rule: &str, name: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let begins = |line: &&str| line.trim_start().starts_with(&format!("{name}:"));
    let mut lines = rule.lines().skip_while(|line| !begins(line));
    let first = lines.next().unwrap_or_else(|| panic!("no {name} in {rule}"));
    let below = lines.take_while(|line| indent(line) > indent(first));
    let (_, value) = first.split_once(':').unwrap_or_default();
    let value: Vec<_> = [value].into_iter().chain(below).map(str::trim).collect();
    value.join("\n").trim().to_owned()
}

#[test]
fn alerts_use_emitted_metrics_only() {
    let (alerts, scraped) = (alerts(), scraped());
    let rules = rules(&alerts);
    assert_eq!(rules.len(), 8);
    for rule in rules {
        check(&field(rule, "expr"), &scraped);
    }
}

#[test]
fn each_alert_states_the_problem_and_the_next_step() {
    let alerts = alerts();
    let page = file("docs/guide/observing.md");
    for rule in rules(&alerts) {
        let name = word(rule);
        let severity = field(rule, "severity");
        assert!(["critical", "warning"].contains(&&*severity), "{name}: {severity}");
        assert!(page.contains(&format!("| `{name}` | {severity} |")), "{name} is not on the page");
        for text in ["description", "next_step"] {
            let sentence = field(rule, text);
            let sentence = sentence.trim_matches('"');
            let inner = sentence.strip_suffix('.').unwrap_or_else(|| panic!("{name}: {sentence}"));
            assert!(!inner.contains(". ") && !inner.contains('\n'), "{name}: {sentence}");
        }
    }
}

#[test]
fn the_page_lists_each_metric_with_its_type_and_labels() {
    let scraped = scraped();
    let emitted: BTreeMap<_, _> =
        scraped.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let page = file("docs/guide/observing.md");
    let mut listed = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `latchwork_")) {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, name, kind, unit, label, _, _] = cells[..] else { panic!("{row}") };
        listed.insert(name, kind);
        assert_eq!(name.ends_with("_seconds"), unit == "seconds", "{name}");
        let mut labels: BTreeSet<_> = scraped
            .lines()
            .filter(|line| line.starts_with(name) && !word(&line[name.len()..]).ends_with("_total"))
            .flat_map(|line| {
                line.split(['{', ',', '}']).filter_map(|it| Some(it.split_once('=')?.0))
            })
            .collect();
        for everywhere in ["store", "le"] {
            labels.remove(everywhere);
        }
        let expected = if label.is_empty() { BTreeSet::new() } else { BTreeSet::from([label]) };
        assert_eq!(labels, expected, "{name}");
    }
    assert_eq!(listed, emitted);
}
