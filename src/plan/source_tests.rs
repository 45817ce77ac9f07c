use super::*;
use std::collections::HashMap;

fn spans(sizes: &[u32]) -> Vec<Span> {
    let mut first = 0;
    sizes
        .iter()
        .map(|n| {
            let span = Span { first, documents: *n, bytes: u64::from(*n) * 1000 };
            first += u64::from(*n);
            span
        })
        .collect()
}

fn plan(sizes: &[u32], lanes: u32, order: Order) -> SourcePlan {
    SourcePlan::new(42, "wiki", spans(sizes), lanes, 1, order, None).unwrap()
}

/// `(epoch, document)` of the first `n` documents of a lane, taken `at_once` at a time.
fn first(plan: &SourcePlan, lane: u32, n: usize, at_once: usize) -> Vec<(u64, u64)> {
    let (mut walk, mut out) = (Walk::new(lane, Cursor::default()), Vec::new());
    while out.len() < n {
        walk.take(plan, at_once.min(n - out.len()), &mut out);
    }
    out.iter().map(|p| (p.epoch, p.document)).collect()
}

const ORDERS: [Order; 3] = [Order::None, Order::Blocks, Order::Global];

#[test]
fn each_epoch_holds_each_document_once_also_with_fewer_documents_than_lanes() {
    for (sizes, lanes) in [(vec![1u32], 8), (vec![5], 8), (vec![1003], 8), (vec![7, 1, 0, 90], 3), (vec![10; 100], 4), (vec![3; 64], 1)] {
        for order in ORDERS {
            let p = plan(&sizes, lanes, order);
            // Every lane walks until it has left epoch 2; then epochs 0 to 2 must be whole.
            let mut seen: HashMap<(u64, u64), u32> = HashMap::new();
            for lane in 0..lanes {
                let (mut walk, mut out) = (Walk::new(lane, Cursor::default()), Vec::new());
                while p.epoch(lane, walk.cursor()).unwrap() < 3 {
                    walk.take(&p, 1, &mut out);
                }
                for picked in out {
                    *seen.entry((picked.epoch, picked.document)).or_default() += 1;
                }
            }
            for epoch in 0..3 {
                for document in 0..p.documents() {
                    assert_eq!(seen.get(&(epoch, document)), Some(&1), "{sizes:?}, {lanes} lanes, {order:?}: document {document} in epoch {epoch}");
                }
            }
        }
    }
}

#[test]
fn every_document_comes_to_every_lane_in_the_end() {
    for (sizes, lanes) in [(vec![64u32], 8), (vec![65], 8), (vec![63], 8), (vec![5], 8), (vec![10; 64], 4), (vec![3; 17], 4)] {
        for order in ORDERS {
            let p = plan(&sizes, lanes, order);
            for lane in 0..lanes {
                let seen: std::collections::HashSet<u64> = first(&p, lane, p.patience() as usize, 64).into_iter().map(|(_, d)| d).collect();
                assert_eq!(seen.len() as u64, p.documents(), "{sizes:?}, lane {lane} of {lanes}, {order:?}");
            }
        }
    }
}

#[test]
fn a_walk_continues_from_any_cursor_and_in_any_portions() {
    for order in ORDERS {
        let p = SourcePlan::new(1, "w", spans(&[100, 3, 57, 240]), 4, 1000, order, None).unwrap();
        let whole = first(&p, 2, 300, 1);
        for at_once in [2, 7, 64, 1000] {
            assert_eq!(first(&p, 2, 300, at_once), whole, "{order:?}, {at_once} at a time");
        }
        let mut out = Vec::new();
        let mut walk = Walk::new(2, Cursor::default());
        while out.len() < 299 {
            walk.take(&p, 1, &mut out);
        }
        for (i, before) in out.iter().enumerate() {
            let mut again = Vec::new();
            Walk::new(2, before.after).take(&p, 1, &mut again);
            assert_eq!((again[0].epoch, again[0].document), whole[i + 1], "{order:?}, from cursor {:?}", before.after);
        }
    }
}

#[test]
fn an_epoch_limit_ends_every_lane() {
    let p = SourcePlan::new(1, "w", spans(&[10]), 4, 1, Order::Blocks, Some(2)).unwrap();
    let (mut total, mut out) = (0, Vec::new());
    for lane in 0..4 {
        let mut walk = Walk::new(lane, Cursor::default());
        loop {
            out.clear();
            walk.take(&p, 3, &mut out);
            if out.is_empty() {
                break;
            }
            total += out.len();
        }
    }
    assert_eq!(total, 20);
}

#[test]
fn epochs_and_names_and_seeds_give_other_orders() {
    let base = plan(&[1000], 1, Order::Blocks);
    let orders = [
        first(&base, 0, 1000, 64),
        first(&base, 0, 2000, 64)[1000..].iter().map(|(_, d)| (0, *d)).collect(),
        first(&SourcePlan::new(43, "wiki", spans(&[1000]), 1, 1, Order::Blocks, None).unwrap(), 0, 1000, 64),
        first(&SourcePlan::new(42, "news", spans(&[1000]), 1, 1, Order::Blocks, None).unwrap(), 0, 1000, 64),
    ];
    for i in 0..orders.len() {
        for j in 0..i {
            assert_ne!(orders[i], orders[j], "{i} and {j}");
        }
    }
    assert_eq!(first(&plan(&[1000], 1, Order::None), 0, 1000, 64), (0..1000).map(|d| (0, d)).collect::<Vec<_>>());
}

#[test]
fn a_hundred_million_documents_are_planned_in_little_memory() {
    let groups = 100_000_000u64 / 4000;
    let many = (0..groups).map(|g| Span { first: g * 4000, documents: 4000, bytes: 4 << 20 });
    let p = SourcePlan::new(1, "big", many, 256, 1, Order::Blocks, None).unwrap();
    assert_eq!((p.documents(), p.blocks()), (100_000_000, 25_000));
    assert!(p.spans.capacity() * size_of::<Span>() < 2 << 20);
    assert_eq!(first(&p, 255, 10_000, 64).len(), 10_000);
}

#[test]
fn a_source_without_documents_is_an_error_that_names_it() {
    let e = SourcePlan::new(1, "empty", spans(&[0, 0]), 4, 1, Order::Blocks, None).err().unwrap();
    assert!(e.message.contains("'empty'"), "{e}");
}
