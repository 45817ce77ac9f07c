use super::super::tests::{lens, options, parts, recipe, recipes};
use super::*;
use crate::base::mix;
use crate::recipe::{Exhausted, Tail};
use std::collections::HashMap;

fn opened(recipe: &Recipe) -> Rows {
    let options = Options { uneven: false, ..options(0, 1) };
    Rows::assemble(parts(recipe, &[100, 25], lens), options).unwrap()
}

/// The hash of every row that a loader delivers in `steps` steps, by its ticket.
fn delivered(loader: &mut Loader, steps: u64) -> HashMap<(u64, u64), u64> {
    let mut rows = HashMap::new();
    for _ in 0..steps {
        let Some(batch) = loader.next(None).unwrap() else { break };
        let of = batch.rows().iter().filter_map(|r| r.of).map(|(lane, row)| (u64::from(lane), row));
        rows.extend(of.zip(batch.row_hashes()));
    }
    rows
}

fn loader(recipe: &Recipe) -> Loader {
    Loader::assemble(parts(recipe, &[100, 25], lens), options(0, 1)).unwrap()
}

/// Tickets in an order that jumps ahead and back, some of them asked for twice.
fn shuffled(rows: &HashMap<(u64, u64), u64>, key: u64) -> Vec<(u64, u64)> {
    let mut tickets: Vec<(u64, u64)> = rows.keys().copied().collect();
    tickets.extend_from_within(..tickets.len() / 4);
    tickets.sort_by_key(|(lane, row)| mix(key ^ lane << 32 ^ row));
    tickets
}

#[test]
fn any_order_of_tickets_gives_the_loaders_rows() {
    for (i, recipe) in recipes().into_iter().enumerate() {
        let expected = delivered(&mut loader(&recipe), 40);
        let mut rows = opened(&recipe);
        for ticket in shuffled(&expected, i as u64).chunks(5) {
            let batch = rows.get(ticket, None).unwrap();
            let wanted: Vec<u64> = ticket.iter().map(|t| expected[t]).collect();
            assert_eq!(batch.row_hashes(), wanted, "recipe {i}, tickets {ticket:?}");
            assert_eq!(batch.step(), ticket[0].1, "one row of each lane a step");
        }
    }
}

#[test]
fn tickets_of_a_stream_that_ends_give_dealt_rows_and_padding_too() {
    for tail in [Tail::Pad, Tail::Drop] {
        let mut recipe = recipe();
        recipe.datasets.iter_mut().for_each(|d| d.exhausted = Exhausted::Redistribute);
        recipe.batch.tail = tail;
        let mut whole = loader(&recipe);
        let steps = whole.steps().unwrap().unwrap();
        let expected = delivered(&mut whole, steps);
        let mut rows = opened(&recipe);
        for ticket in shuffled(&expected, 3) {
            assert_eq!(rows.get(&[ticket], None).unwrap().row_hashes(), [expected[&ticket]], "{ticket:?}");
        }
        let e = rows.get(&[(0, steps)], None).err().unwrap();
        assert!(e.message.contains("the stream ends with row"), "{e}");
    }
}

#[test]
fn weights_set_along_the_way_are_followed_and_what_was_passed_stays_true() {
    let recipe = recipe();
    let mut changed = loader(&recipe);
    changed.set_mixture(vec![0.1, 5.0], 20).unwrap();
    let (before, after) = (delivered(&mut loader(&recipe), 45), delivered(&mut changed, 45));
    assert_ne!(before, after);
    let mut rows = opened(&recipe);
    for pass in 0..3 {
        let (expected, of) = if pass == 1 { (&after, changed.save().meta) } else { (&before, loader(&recipe).save().meta) };
        rows.follow(&of, 45).unwrap();
        for ticket in shuffled(expected, 9 + pass) {
            assert_eq!(rows.get(&[ticket], None).unwrap().row_hashes(), [expected[&ticket]], "pass {pass}, {ticket:?}");
        }
    }
}

#[test]
fn wrong_asking_is_named() {
    let recipe = recipe();
    let mut rows = opened(&recipe);
    assert!(rows.get(&[], None).err().unwrap().message.contains("no ticket"));
    assert!(rows.get(&[(16, 0)], None).err().unwrap().message.contains("lanes 0 to 15"));
    let e = Rows::assemble(parts(&recipe, &[100, 25], lens), options(0, 1)).err().unwrap();
    assert!(e.message.contains("uneven says which rows a rank takes"), "{e}");
    let other = Recipe { seed: 99, ..recipe.clone() };
    let e = rows.follow(&loader(&other).save().meta, 0).unwrap_err();
    assert!(e.status == Status::Refused && e.message.contains("seed is 0 now and was 99"), "{e}");
    let past = Some(Instant::now());
    assert_eq!(rows.get(&[(0, 30)], past).err().unwrap().status, Status::Timeout);
    assert!(rows.get(&[(0, 30)], None).is_ok());
}
