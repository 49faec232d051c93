//! Small models, searched to the end: those that should hold do, and show all that they should;
//! a broken one is found out, by a way as short as the recorded one.

use latchwork_model::{Search, named, story};

const SEARCH: Search = Search { nearest_first: true, threads: 1, limit: 10_000_000 };

fn holds(name: &str) {
    let variant = named(name).expect("a variant");
    assert!(variant.broken.is_none());
    let found = SEARCH.run(&variant.model, |_| {});
    if let Some((_, steps)) = &found.violation {
        panic!("{}", story::record(&variant, steps));
    }
    assert!(found.complete);
    assert_eq!(found.unseen, [""; 0], "the model is not alive");
}

fn is_found_out(name: &str) {
    let variant = named(name).expect("a variant");
    let broken = variant.broken.as_ref().expect("a broken one");
    let found = SEARCH.run(&variant.model, |_| {});
    let (property, steps) = found.violation.expect("a violation");
    assert_eq!(property, broken.violates);
    let recorded = story::read(broken.story).expect("steps of the model");
    assert_eq!(steps.len(), recorded.len(), "{}", story::record(&variant, &steps));
}

macro_rules! searches {
    ($($check:ident $test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            $check($name);
        })*
    };
}

searches! {
    holds a1_when_nothing_goes_wrong: "A1",
    holds a1b_with_two_rounds: "A1b",
    holds a3_with_a_marker_where_data_are_lost: "A3",
    holds a5_with_old_snapshots: "A5",
    holds a7_with_two_restarts: "A7",
    holds b3_without_clocks: "B3",
    holds e3h_with_tokens_learned_in_time: "E3h",
    holds e4_with_clocks_of_clients_alone: "E4",
    holds e6_with_a_longer_quarantine: "E6",
    holds e9_with_a_late_client: "E9",
    holds e10_with_a_client_ahead: "E10",
    holds l2_with_leftovers: "L2",
    holds r1_with_renewals: "R1",
    holds r4_with_renewals_and_a_restart: "R4",
    holds s1_with_snapshots_of_any_moment: "S1",
    is_found_out a2_without_a_guard: "A2",
    is_found_out a4_without_an_identity: "A4",
    is_found_out a6b_with_a_short_quarantine: "A6b",
    is_found_out b1_without_a_confirmation: "B1",
    is_found_out b2_with_a_confirmation_anywhere: "B2",
    is_found_out e3_with_counters: "E3",
    is_found_out e3g_with_tokens_learned_too_early: "E3g",
    is_found_out e5_with_a_late_client_alone: "E5",
    is_found_out e7_with_a_very_late_client_alone: "E7",
    is_found_out e8_with_a_client_far_ahead: "E8",
    is_found_out j1_with_a_jump: "J1",
    is_found_out r2_with_renewals_that_plant: "R2",
    is_found_out r3_with_late_renewals: "R3",
}
