//! Places at which loaders have been seen to go wrong, each looked at by itself: ends of epochs, documents that lie over many
//! rows, batches made ahead, weights that change, the end of a stream.

use super::tests::{hashes, lens, options, parts, recipe, recipes, saved, world};
use super::*;
use crate::data::DatasetSpec;
use crate::pipeline::synthetic::Lens;
use crate::plan::Order;
use crate::recipe::{Algorithm, DatasetRecipe, LongDocuments};
use std::collections::HashSet;

/// One row a document, in no other order than that of the documents: so rows tell which documents come.
fn a_row_a_document(recipe: &mut Recipe) {
    (recipe.pack.algorithm, recipe.shuffle.buffer_size) = (Algorithm::None, 0);
}

fn opened(recipe: &Recipe, documents: &[u64], lens: Lens, ranks: u32) -> Vec<Loader> {
    (0..ranks).map(|rank| Loader::assemble(parts(recipe, documents, lens), options(rank, ranks)).unwrap()).collect()
}

/// Source and document of each row's first piece, of some steps of one rank.
fn firsts(loader: &mut Loader, steps: u64) -> Vec<(u16, u64, u32)> {
    let batches = (0..steps).map(|_| loader.next(None).unwrap().unwrap());
    batches.flat_map(|b| b.rows().iter().map(|r| (r.pieces[0].source, r.pieces[0].document, r.pieces[0].start)).collect::<Vec<_>>()).collect()
}

#[test]
fn a_state_taken_after_the_last_row_of_an_epoch_goes_on_with_the_first_of_the_next() {
    for order in [Order::None, Order::Blocks, Order::Global] {
        let mut recipe = Recipe::new(vec![DatasetRecipe::new(DatasetSpec::new("a", ["a"]))], "t", 16, 16);
        a_row_a_document(&mut recipe);
        recipe.shuffle.documents = order;
        // 48 documents are three steps.
        let mut whole = opened(&recipe, &[48], |_, _| 5, 1).remove(0);
        let expected = firsts(&mut whole, 15);
        for epoch in expected.chunks(48) {
            assert_eq!(epoch.iter().map(|f| f.1).collect::<HashSet<_>>().len(), 48, "{order:?}: each document once");
        }
        let mut cut = opened(&recipe, &[48], |_, _| 5, 2);
        for epoch in 0..3 {
            hashes(&mut cut, 3);
            let checkpoint = saved(&cut, epoch % 2 == 0);
            let mut resumed = opened(&recipe, &[48], |_, _| 5, 1).remove(0);
            resumed.load(&checkpoint).unwrap();
            let next = firsts(&mut resumed, 6);
            assert_eq!(next, expected[(epoch + 1) * 48..(epoch + 3) * 48], "{order:?}, after epoch {epoch}");
        }
    }
}

#[test]
fn a_resume_of_a_resume_is_exact_however_few_rows_lie_between() {
    for recipe in [&recipes()[0], &recipes()[7], &recipes()[10]] {
        let expected = hashes(&mut world(recipe, 1, |_| ()), 30);
        for (cut, taken) in [0, 1, 7, 8, 17].into_iter().flat_map(|cut| [0, 1, 2].map(|taken| (cut, taken))) {
            let mut first = world(recipe, 2, |_| ());
            hashes(&mut first, cut);
            let state = saved(&first, true);
            let mut second = world(recipe, 4, |_| ());
            second.iter_mut().for_each(|l| l.load(&state).unwrap());
            assert_eq!(saved(&second, true), state, "saving what was loaded");
            hashes(&mut second, taken);
            let again = saved(&second, false);
            let mut third = world(recipe, 1, |_| ());
            third[0].load(&again).unwrap();
            let at = (cut + taken) as usize;
            assert_eq!(hashes(&mut third, 6), expected[at..at + 6], "cut at {cut}, and {taken} steps later");
        }
    }
}

#[test]
fn a_state_counts_what_was_delivered_and_not_what_was_made_ahead() {
    let recipe = &recipes()[0];
    let with = |prefetch| Options { threads: 2, prefetch, microbatch_size: Some(4), ..options(1, 2) };
    let open = |prefetch| Loader::assemble(parts(recipe, &[100, 25], lens), with(prefetch)).unwrap();
    let mut whole = open(0);
    let expected: Vec<Vec<u64>> = (0..44).map(|_| whole.next(None).unwrap().unwrap().row_hashes()).collect();
    for prefetch in [0, 1, 16] {
        let mut loader = open(prefetch);
        for at in 0..40 {
            let checkpoint = loader.save();
            assert_eq!(loader.next(None).unwrap().unwrap().row_hashes(), expected[at], "{prefetch} steps ahead, with a save before each batch");
            let mut resumed = open(prefetch);
            resumed.load(&checkpoint).unwrap();
            for next in &expected[at..at + 3] {
                assert_eq!(resumed.next(None).unwrap().unwrap().row_hashes(), *next, "{prefetch} steps ahead, resumed at batch {at}");
            }
        }
    }
}

#[test]
fn a_document_of_five_rows_goes_on_with_the_piece_behind_the_last_delivered() {
    let mut recipe = Recipe::new(vec![DatasetRecipe::new(DatasetSpec::new("a", ["a"]))], "t", 16, 16);
    recipe.shuffle.buffer_size = 0;
    let five: Lens = |_, _| 80;
    let expected = firsts(&mut opened(&recipe, &[100], five, 1)[0], 12);
    for pieces in 1..10 {
        let mut cut = opened(&recipe, &[100], five, 1);
        hashes(&mut cut, pieces);
        let mut resumed = opened(&recipe, &[100], five, 1);
        resumed[0].load(&saved(&cut, true)).unwrap();
        let next = firsts(&mut resumed[0], 2);
        assert!(next[..16].iter().all(|(.., start)| u64::from(*start) == pieces % 5 * 16), "after {pieces} pieces: {next:?}");
        assert_eq!(next, expected[pieces as usize * 16..][..32], "the same documents");
    }
}

/// The documents of a source that each lane is given, in order.
fn of_lanes(batches: &[Vec<(u16, u64, u32)>], source: u16) -> Vec<Vec<u64>> {
    (0..16).map(|lane| batches.iter().map(|rows| rows[lane]).filter(|f| f.0 == source).map(|f| f.1).collect()).collect()
}

#[test]
fn weights_that_change_repeat_no_document_and_skip_none() {
    let mut recipe = recipe();
    a_row_a_document(&mut recipe);
    recipe.datasets[1].weight = 1.0;
    let lens: Lens = |_, d| 1 + (d % 14) as u32;
    let documents = [100, 60];
    let steps = |loader: &mut Loader, n: u64| -> Vec<Vec<(u16, u64, u32)>> { (0..n).map(|_| firsts(loader, 1)).collect() };
    let plain = steps(&mut opened(&recipe, &documents, lens, 1)[0], 400);
    let mut changed = opened(&recipe, &documents, lens, 1).remove(0);
    changed.set_mixture(vec![2.0, 1.0], 40).unwrap();
    let mut seen = steps(&mut changed, 70);
    changed.set_mixture(vec![1.0, 3.0], 100).unwrap();
    seen.extend(steps(&mut changed, 60));
    let mut resumed = opened(&recipe, &documents, lens, 1).remove(0);
    resumed.load(&changed.save()).unwrap();
    seen.extend(steps(&mut resumed, 70));
    for source in [0, 1] {
        let (order, seen) = (of_lanes(&plain, source), of_lanes(&seen, source));
        for (lane, seen) in seen.iter().enumerate() {
            assert_eq!(seen[..], order[lane][..seen.len()], "lane {lane}: source {source} comes in its own order, whatever the weights");
        }
        let counts: Vec<usize> = seen.iter().map(Vec::len).collect();
        assert!(counts.iter().all(|n| n.abs_diff(counts[0]) <= 4), "all lanes switch at the same row: {counts:?}");
    }
    let share = |range: std::ops::Range<usize>| seen[range.clone()].iter().flatten().filter(|f| f.0 == 0).count() as f64 / (range.len() * 16) as f64;
    for (range, expected) in [(0..64, 0.5), (64..128, 2.0 / 3.0), (128..200, 0.25)] {
        assert!((share(range.clone()) - expected).abs() < 0.02, "steps {range:?}: {}", share(range.clone()));
    }
}

/// Some documents are empty, filtered, or longer than a row; the last ones of a source are, so that nothing follows them.
fn lossy(source: usize, document: u64) -> u32 {
    match (source, document) {
        (_, 60..) => [0, u32::MAX, 40][document as usize % 3],
        _ => lens(source, document),
    }
}

#[test]
fn every_document_of_a_stream_that_ends_is_counted_once_over_all_ranks() {
    for (exhausted, algorithm, epochs) in [
        (Exhausted::Redistribute, Algorithm::Wrap, 1),
        (Exhausted::Redistribute, Algorithm::BestFit, 1),
        (Exhausted::Redistribute, Algorithm::BestFitWrap, 3),
        (Exhausted::Stop, Algorithm::None, 2),
    ] {
        let mut recipe = recipe();
        (recipe.pack.algorithm, recipe.pack.long_documents, recipe.shuffle.documents) = (algorithm, Some(LongDocuments::Drop), Order::None);
        (recipe.datasets[0].exhausted, recipe.datasets[1].exhausted) = (exhausted, Exhausted::Redistribute);
        recipe.datasets.iter_mut().for_each(|d| d.epochs = epochs);
        if exhausted == Exhausted::Stop {
            recipe.datasets.truncate(1);
        }
        let documents = &[100, 70][..recipe.datasets.len()];
        let all = || documents.iter().enumerate().flat_map(|(source, n)| (0..*n).map(move |d| lossy(source, d)));
        let count = |keep: &dyn Fn(u32) -> bool| epochs * all().filter(|len| keep(*len)).count() as u64;
        let kept = |len: u32| (1..=16).contains(&len);
        for (ranks, prefetch, threads) in [(1, 0, 0), (2, 0, 2), (4, 16, 1), (16, 1, 0)] {
            let with = |rank| Options { prefetch, threads, ..options(rank, ranks) };
            let mut loaders: Vec<Loader> = (0..ranks).map(|r| Loader::assemble(parts(&recipe, documents, lossy), with(r)).unwrap()).collect();
            let mut counts = LaneCounts::default();
            let mut out = 0;
            for loader in &mut loaders {
                while let Some(batch) = loader.next(None).unwrap() {
                    out += batch.rows().iter().flat_map(|r| &r.pieces).map(|p| u64::from(p.len)).sum::<u64>();
                }
                assert!(loader.next(None).unwrap().is_none(), "asked again, it has ended still");
                let of = loader.stats().unwrap().counts;
                counts.documents += of.documents;
                counts.tokens += of.tokens;
                counts.left_out.add(&of.left_out);
            }
            let what = format!("{algorithm:?} on {ranks} ranks: {counts:?}");
            assert_eq!(counts.documents, count(&kept), "{what}");
            assert_eq!((counts.left_out.empty, counts.left_out.filtered), (count(&|len| len == 0), count(&|len| len == u32::MAX)), "{what}");
            assert_eq!(counts.left_out.dropped, count(&|len| len > 16 && len != u32::MAX), "{what}");
            let tokens = epochs * all().filter(|len| *len != u32::MAX).map(u64::from).sum::<u64>();
            assert_eq!(out + counts.left_out.dropped_tokens, tokens, "{what}: tokens in are tokens out and counted drops");
            assert_eq!(out, counts.tokens, "{what}");
        }
    }
}
