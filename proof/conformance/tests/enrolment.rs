//! No backend of the workspace and no rule of the contract goes untried.

use std::path::Path;

#[test]
fn every_backend_and_every_rule_is_tried() {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = suites.join("../..");
    let page = root.join("crates/latchwork-store/src/backend.rs");
    let gaps = latchwork_conformance::enrolment::gaps(&root, suites, &page).expect("sources");
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
}
