//! Each broken variant has a recorded counter-example. It must lead to the violation step by step,
//! and must not when the fault is mended.

use latchwork_model::story::{self, Outcome};
use latchwork_model::{Variant, all, named};

fn counter_example_is_true(name: &str) {
    let variant = named(name).expect("a variant");
    let broken = variant.broken.as_ref().expect("a broken one");
    let steps = story::read(broken.story).expect("steps of the model");

    let violation = Some((broken.violates, steps.len()));
    let expected = Outcome { impossible: Vec::new(), violation };
    assert_eq!(story::replay(&variant.model, &steps), expected);

    let mended = story::replay(&broken.mended, &steps);
    assert_eq!(mended.violation, None, "mended, and yet: {mended:?}");

    assert_eq!(story::record(&variant, &steps), broken.story, "the remarks are not true any more");
}

macro_rules! counter_examples {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            counter_example_is_true($name);
        })*

        #[test]
        fn no_broken_variant_is_left_out() {
            let broken: Vec<&str> =
                all().iter().filter(|v| v.broken.is_some()).map(|v: &Variant| v.name).collect();
            assert_eq!(broken, [$($name),*]);
        }
    };
}

counter_examples! {
    a2_a_restart_without_a_guard: "A2",
    a4_a_marker_without_identity: "A4",
    a6b_a_quarantine_that_is_too_short: "A6b",
    b1_a_token_that_nobody_confirms: "B1",
    b2_a_token_confirmed_without_the_claim: "B2",
    e3_counters_and_a_restart: "E3",
    e3g_tokens_learned_too_early: "E3g",
    e5_a_client_clock_that_is_late: "E5",
    e7_a_client_clock_that_is_very_late: "E7",
    e8_a_client_clock_that_is_ahead: "E8",
    j1_a_node_clock_that_jumps: "J1",
    r2_renewals_that_plant_and_count: "R2",
    r3_renewals_that_count_too_late: "R3",
}
