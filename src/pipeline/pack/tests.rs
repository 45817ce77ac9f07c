use super::*;
use crate::base::mix;
use crate::recipe::{FlushStrategy, Homogeneity};

const ALL: [Algorithm; 5] = [Algorithm::Wrap, Algorithm::FirstFit, Algorithm::BestFit, Algorithm::BestFitWrap, Algorithm::None];

fn recipe(algorithm: Algorithm, length: u32, held: u32) -> PackRecipe {
    PackRecipe { algorithm, num_bins: held, candidate_pool_size: held, ..PackRecipe::new(length) }
}

fn document(source: u16, document: u64, len: u32) -> Piece {
    let tokens: Vec<u32> = (0..len).map(|i| document as u32 * 1000 + i).collect();
    Piece { source, document, start: 0, len, tokens: Tokens::new(Arc::new(tokens.into()), 0) }
}

/// All rows of documents of these lengths, written as `document[start+len]`.
fn rows(recipe: &PackRecipe, lens: &[u32]) -> Vec<String> {
    let mut packer = Packer::new(recipe, vec![0]);
    let mut out = Vec::new();
    let mut drain = |packer: &mut Packer| {
        while let Some(row) = packer.pop() {
            assert!(row.iter().map(|p| p.len).sum::<u32>() <= recipe.max_length && !row.is_empty());
            for piece in &row {
                let first = piece.document as u32 * 1000 + piece.start;
                assert_eq!(piece.tokens().to_vec(), (first..first + piece.len).collect::<Vec<_>>());
            }
            out.push(row.iter().map(|p| format!("{}[{}+{}]", p.document, p.start, p.len)).collect::<Vec<_>>().join(" "));
        }
    };
    for (i, len) in lens.iter().enumerate() {
        packer.push(document(0, i as u64, *len));
        drain(&mut packer);
    }
    packer.flush();
    drain(&mut packer);
    out
}

#[test]
fn wrap_cuts_where_a_row_is_full() {
    assert_eq!(rows(&recipe(Algorithm::Wrap, 60, 1), &[121]), ["0[0+60]", "0[60+60]", "0[120+1]"]);
    assert_eq!(rows(&recipe(Algorithm::Wrap, 4, 1), &[1, 3, 4, 5, 2]), ["0[0+1] 1[0+3]", "2[0+4]", "3[0+4]", "3[4+1] 4[0+2]"]);
}

#[test]
fn first_fit_takes_the_first_row_with_room_and_best_fit_the_tightest() {
    let lens = [5, 7, 3, 2, 6, 9];
    assert_eq!(rows(&recipe(Algorithm::FirstFit, 10, 2), &lens), ["0[0+5] 2[0+3] 3[0+2]", "1[0+7]", "4[0+6]", "5[0+9]"]);
    assert_eq!(rows(&recipe(Algorithm::BestFit, 10, 2), &lens), ["1[0+7] 2[0+3]", "0[0+5] 3[0+2]", "4[0+6]", "5[0+9]"]);
    assert_eq!(rows(&recipe(Algorithm::FirstFit, 10, 2), &[25]), ["0[0+10]", "0[10+10]", "0[20+5]"], "split, if the policy lets it through");
}

#[test]
fn a_row_holds_no_more_pieces_than_it_may() {
    let capped = |algorithm, held, most| PackRecipe { max_sequences_per_bin: Some(most), ..recipe(algorithm, 10, held) };
    let lens = [2, 1, 3, 12, 1, 1];
    assert_eq!(rows(&capped(Algorithm::Wrap, 1, 2), &lens), ["0[0+2] 1[0+1]", "2[0+3] 3[0+7]", "3[7+5] 4[0+1]", "5[0+1]"]);
    assert_eq!(rows(&capped(Algorithm::FirstFit, 2, 2), &[2, 9, 3, 5, 1]), ["0[0+2] 2[0+3]", "1[0+9] 4[0+1]", "3[0+5]"]);
    assert_eq!(rows(&capped(Algorithm::BestFit, 2, 1), &[2, 9, 3]), ["0[0+2]", "1[0+9]", "2[0+3]"]);
    // Two are enough for a row, although they do not fill it.
    assert_eq!(rows(&capped(Algorithm::BestFitWrap, 2, 2), &[3, 2, 1]), ["0[0+3] 1[0+2]", "2[0+1]"]);
}

#[test]
fn a_row_with_little_room_is_full_and_the_fullest_may_go_first() {
    let early = PackRecipe { min_sequence_length: 3, ..recipe(Algorithm::FirstFit, 10, 2) };
    assert_eq!(rows(&early, &[8, 7, 2, 3]), ["0[0+8]", "1[0+7] 2[0+2]", "3[0+3]"]);
    let fullest = PackRecipe { flush_strategy: FlushStrategy::Fullest, ..recipe(Algorithm::FirstFit, 10, 2) };
    assert_eq!(rows(&fullest, &[5, 7, 6, 6]), ["1[0+7]", "2[0+6]", "0[0+5]", "3[0+6]"]);
}

#[test]
fn best_fit_wrap_fills_rows_with_the_longest_and_cuts_one() {
    // The oldest (3), the longest that fits in 7 (6), and one token of the longest left.
    assert_eq!(rows(&recipe(Algorithm::BestFitWrap, 10, 4), &[3, 8, 6, 2]), ["0[0+3] 2[0+6] 1[0+1]", "1[1+7] 3[0+2]"]);
}

#[test]
fn none_gives_each_document_its_row() {
    assert_eq!(rows(&recipe(Algorithm::None, 10, 9), &[3, 8, 10]), ["0[0+3]", "1[0+8]", "2[0+10]"]);
}

fn lens(seed: u64, n: u64, most: u32) -> Vec<u32> {
    (0..n).map(|i| 1 + (mix(seed * 1000 + i) % u64::from(most)) as u32).collect()
}

#[test]
fn every_token_comes_out_once_and_the_wrap_kinds_pad_only_the_last_row() {
    for algorithm in ALL {
        for (seed, most, length, held) in [(1, 30, 16, 4), (2, 5, 16, 3), (3, 100, 7, 1), (4, 16, 16, 64)] {
            let lens = lens(seed, 500, most);
            let mut packer = Packer::new(&recipe(algorithm, length, held), vec![0]);
            let mut out = Vec::new();
            for (i, len) in lens.iter().enumerate() {
                packer.push(document(0, i as u64, *len));
                out.extend(std::iter::from_fn(|| packer.pop()));
            }
            packer.flush();
            out.extend(std::iter::from_fn(|| packer.pop()));
            let mut seen: Vec<(u64, u32, u32)> = out.iter().flatten().map(|p| (p.document, p.start, p.len)).collect();
            seen.sort();
            for (i, len) in lens.iter().enumerate() {
                let pieces = seen.iter().filter(|p| p.0 == i as u64);
                let end = pieces.fold(0, |end, p| if p.1 == end { end + p.2 } else { u32::MAX });
                assert_eq!(end, *len, "{algorithm:?}, document {i}");
            }
            if matches!(algorithm, Algorithm::Wrap | Algorithm::BestFitWrap) {
                let full = |row: &Row| row.iter().map(|p| p.len).sum::<u32>() == length;
                assert!(out[..out.len() - 1].iter().all(full), "{algorithm:?}");
            }
        }
    }
}

#[test]
fn no_document_waits_in_the_pool_for_more_rows_than_it_holds() {
    let recipe = recipe(Algorithm::BestFitWrap, 100, 8);
    let mut packer = Packer::new(&recipe, vec![0]);
    let (mut row_number, mut came) = (0u64, Vec::new());
    // Document 0 is short, and longer ones keep coming that fit better.
    for i in 0..2000u64 {
        packer.push(document(0, i, if i == 0 { 1 } else { 49 + (i % 3) as u32 }));
        came.push(row_number);
        while let Some(row) = packer.pop() {
            row.iter().filter(|p| p.start == 0).for_each(|p| assert!(row_number - came[p.document as usize] <= 9, "{row:?}"));
            row_number += 1;
        }
    }
}

#[test]
fn a_packer_restored_from_pointers_after_any_row_gives_the_same_rows() {
    for algorithm in ALL {
        for domains in [vec![0, 0], vec![0, 1]] {
            let recipe = PackRecipe { homogeneity: Homogeneity::Full, ..recipe(algorithm, 16, 4) };
            let lens = lens(9, 300, 40);
            let mut packer = Packer::new(&recipe, domains.clone());
            let mut restored: Option<Packer> = None;
            for (i, len) in lens.iter().enumerate() {
                let piece = document((i % 2) as u16, i as u64, *len);
                packer.push(piece.clone());
                if let Some(r) = &mut restored {
                    r.push(piece);
                }
                loop {
                    let row = packer.pop();
                    if let Some(r) = &mut restored {
                        assert_eq!(format!("{:?}", r.pop()), format!("{row:?}"), "{algorithm:?}");
                    }
                    let Some(row) = row else { break };
                    assert!(domains == [0, 0] || row.iter().all(|p| p.source == row[0].source), "rows keep to their domain");
                    let mut saved = Vec::new();
                    packer.save(&mut saved);
                    let mut again = Packer::new(&recipe, domains.clone());
                    let mut reader = Reader::new(&saved);
                    again.load(&mut reader).unwrap();
                    reader.finish().unwrap();
                    let mut twice = Vec::new();
                    again.save(&mut twice);
                    assert_eq!(twice, saved);
                    if algorithm == Algorithm::Wrap && domains == [0, 0] {
                        assert!(packer.pieces().count() <= 1, "after a row, wrap holds the rest of one document");
                    }
                    restored = Some(again);
                }
            }
        }
    }
}
