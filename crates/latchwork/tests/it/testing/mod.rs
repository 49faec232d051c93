//! The store for tests of users' code: `latchwork::testing`.

mod clock;
mod counts;
mod loss;
mod page;
mod scripts;
#[cfg(target_os = "linux")]
mod threads;

use std::time::Duration;

const SEC: Duration = Duration::from_secs(1);
/// The default ttl.
const TTL: Duration = Duration::from_secs(30);

/// The Rust of the guide's page is the code that is tried.
#[test]
fn the_page_is_the_code_that_is_tried() {
    let page = include_str!("../../../../../docs/guide/testing-your-code.md");
    let (_, tried) = include_str!("page.rs").split_once("\n\n").unwrap();
    let blocks = page.split("```rust\n").skip(1);
    let told: Vec<&str> = blocks.map(|block| block.split_once("```").unwrap().0).collect();
    assert_eq!(told.join("\n"), tried);
}
