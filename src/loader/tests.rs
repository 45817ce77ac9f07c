use super::*;
use crate::base::mix;
use crate::data::DatasetSpec;
use crate::pipeline::synthetic::{Lens, Synthetic};
use crate::pipeline::{Checkpoint, DataIdentity, Operator, OperatorMaker, Piece, global_hash};
use crate::plan::{Order, Steps, Unit};
use crate::recipe::{Algorithm, DatasetRecipe, Tail};

pub(super) fn lens(source: usize, document: u64) -> u32 {
    match mix(document * 7 + source as u64) % 40 {
        0 => 0,
        1 => u32::MAX,
        2 => 70,
        n => n as u32,
    }
}

/// Two datasets, of 100 and 25 documents where nothing else is said; rows of 16 tokens, 16 a step.
pub(super) fn recipe() -> Recipe {
    let mut datasets = vec![DatasetRecipe::new(DatasetSpec::new("a", ["a"])), DatasetRecipe::new(DatasetSpec::new("b", ["b"]))];
    datasets[1].weight = 0.3;
    let mut recipe = Recipe::new(datasets, "t", 16, 16);
    recipe.shuffle.buffer_size = 160;
    recipe
}

pub(super) fn parts(recipe: &Recipe, documents: &[u64], lens: Lens) -> Parts {
    let work = Synthetic::new(lens);
    let source = |(i, n): (usize, &u64)| Source {
        spans: (0..n.div_ceil(25)).map(|g| Span { first: g * 25, documents: (n - g * 25).min(25) as u32, bytes: 1000 }).collect(),
        identity: DataIdentity::new(&recipe.datasets[i].spec.name, *n, &[*n]),
        paths: vec![format!("{i}.jsonl")],
        lengths_key: 0,
    };
    Parts {
        recipe: recipe.clone(),
        sources: documents.iter().enumerate().map(source).collect(),
        work: Arc::new(work),
        operators: Vec::new(),
        tokenizer: 1,
        frame: "[] … []".into(),
        tokenizer_engine: "none".into(),
        pad_token_id: 0,
        bytes_read: Arc::new(|| 0),
        datasets: Vec::new(),
        decoder: None,
    }
}

pub(super) fn options(rank: u32, ranks: u32) -> Options {
    // A cache that cannot be written: lengths of made-up documents must not be kept.
    Options { rank, ranks, threads: 0, prefetch: 0, uneven: true, cache_dir: Some("/dev/null/laneway".into()), ..Options::default() }
}

fn open(recipe: &Recipe, options: Options) -> Loader {
    Loader::assemble(parts(recipe, &[100, 25], lens), options).unwrap()
}

/// Hashes of the global batches of some steps, from one loader a rank.
pub(super) fn hashes(loaders: &mut [Loader], steps: u64) -> Vec<u64> {
    let step = |_| {
        let rows = loaders.iter_mut().flat_map(|loader| {
            let (mut rows, step) = (Vec::new(), loader.step());
            while loader.step() == step {
                rows.extend(loader.next(None).unwrap().expect("the stream goes on").row_hashes());
            }
            rows
        });
        global_hash(rows)
    };
    (0..steps).map(step).collect()
}

pub(super) fn world(recipe: &Recipe, ranks: u32, change: impl Fn(&mut Options)) -> Vec<Loader> {
    let with = |rank| {
        let mut options = options(rank, ranks);
        change(&mut options);
        open(recipe, options)
    };
    (0..ranks).map(with).collect()
}

/// The union of the ranks' states, through one of its two forms.
pub(super) fn saved(loaders: &[Loader], json: bool) -> Checkpoint {
    let mut all = loaders.iter().map(|l| match json {
        true => Checkpoint::from_json(&l.save().to_json()).unwrap(),
        false => Checkpoint::from_bytes(&l.save().to_bytes()).unwrap(),
    });
    let first = all.next().unwrap();
    all.fold(first, |mut whole, part| {
        whole.merge(part).unwrap();
        whole
    })
}

/// An algorithm that holds few documents: `num_bins` and `candidate_pool_size` where it has them.
pub(super) fn few(algorithm: Algorithm) -> (Algorithm, u32, u32) {
    match algorithm {
        Algorithm::FirstFit | Algorithm::BestFit => (algorithm, 4, 64),
        Algorithm::BestFitWrap => (algorithm, 64, 6),
        Algorithm::Wrap | Algorithm::None => (algorithm, 64, 64),
    }
}

pub(super) fn recipes() -> Vec<Recipe> {
    let mut all = Vec::new();
    for algorithm in [Algorithm::Wrap, Algorithm::FirstFit, Algorithm::BestFit, Algorithm::BestFitWrap, Algorithm::None] {
        for (unit, order, buffer) in [(Unit::Samples, Order::Blocks, 160), (Unit::Tokens, Order::Global, 0), (Unit::Tokens, Order::None, 300)] {
            let mut r = recipe();
            (r.pack.algorithm, r.pack.num_bins, r.pack.candidate_pool_size) = few(algorithm);
            (r.mixture.unit, r.shuffle.documents, r.shuffle.buffer_size) = (unit, order, buffer);
            all.push(r);
        }
    }
    all
}

/// Forty-five rows a lane: six windows of the shuffle, and about four epochs of each source.
#[test]
fn global_batches_are_the_same_for_every_number_of_ranks_threads_and_depth() {
    for recipe in recipes() {
        let expected = hashes(&mut world(&recipe, 1, |_| ()), 45);
        assert_eq!(expected.iter().collect::<std::collections::HashSet<_>>().len(), 45, "batches differ from each other");
        for ranks in [2, 3, 4, 8, 16] {
            assert_eq!(hashes(&mut world(&recipe, ranks, |_| ()), 45), expected, "{ranks} ranks");
        }
        for (threads, prefetch) in [(1, 0), (2, 1), (5, 16)] {
            let change = |o: &mut Options| (o.threads, o.prefetch, o.microbatch_size) = (threads, prefetch, Some(3));
            assert_eq!(hashes(&mut world(&recipe, 2, change), 45), expected, "{threads} threads, {prefetch} steps ahead");
        }
    }
}

#[test]
fn a_run_cut_anywhere_goes_on_with_any_number_of_ranks_as_if_it_had_not_been() {
    for recipe in recipes() {
        let expected = hashes(&mut world(&recipe, 1, |_| ()), 45);
        let mut done = Vec::new();
        let mut checkpoint: Option<Checkpoint> = None;
        for (i, (ranks, steps)) in [(2, 0), (1, 1), (4, 7), (3, 9), (16, 1), (2, 12), (1, 0), (8, 15)].into_iter().enumerate() {
            let mut loaders = world(&recipe, ranks, |o| (o.threads, o.prefetch) = ([0, 2][i % 2], i as u64 % 3));
            if let Some(checkpoint) = &checkpoint {
                loaders.iter_mut().for_each(|l| l.load(checkpoint).unwrap());
                assert_eq!(saved(&loaders, true), *checkpoint, "saving what was loaded gives the same");
            }
            done.extend(hashes(&mut loaders, steps));
            checkpoint = Some(saved(&loaders, i % 2 == 0));
        }
        assert_eq!(done, expected, "{:?}", recipe.pack.algorithm);
    }
}

#[test]
fn saving_at_every_step_changes_nothing_and_every_state_resumes() {
    for (i, recipe) in recipes().iter().enumerate() {
        let expected = hashes(&mut world(recipe, 1, |_| ()), 40);
        let mut loaders = world(recipe, 2, |o| (o.threads, o.prefetch) = (2, [0, 1, 16][i % 3]));
        for step in 0..36 {
            let checkpoint = saved(&loaders, false);
            assert_eq!(hashes(&mut loaders, 1)[0], expected[step], "the stream with saves");
            let mut resumed = world(recipe, 1, |_| ());
            resumed[0].load(&checkpoint).unwrap();
            assert_eq!(hashes(&mut resumed, 4), expected[step..step + 4], "recipe {i}, resumed at {step}");
        }
    }
}

#[test]
fn a_state_taken_within_a_step_resumes_there_on_the_same_ranks_and_is_refused_on_others() {
    let recipe = recipe();
    let with = |size| Options { microbatch_size: size, ..options(0, 1) };
    let mut whole = open(&recipe, with(Some(4)));
    let rows: Vec<Vec<u64>> = (0..20).map(|_| whole.next(None).unwrap().unwrap().row_hashes()).collect();
    let mut first = open(&recipe, with(Some(4)));
    (0..6).for_each(|_| drop(first.next(None).unwrap()));
    let checkpoint = first.save();
    let mut second = open(&recipe, with(Some(4)));
    second.load(&checkpoint).unwrap();
    let batch = second.next(None).unwrap().unwrap();
    assert_eq!((batch.step(), batch.microbatch(), batch.row_hashes()), (1, 2, rows[6].clone()));
    let e = open(&recipe, with(Some(8))).load(&checkpoint).unwrap_err();
    assert!(e.message.contains("within step 1 (microbatches of 4 on 1 ranks), after microbatch 2"), "{e}");
}

#[test]
fn what_would_change_the_data_is_refused_by_name() {
    let recipe = recipe();
    let checkpoint = open(&recipe, options(0, 1)).save();
    let refused = |change: fn(&mut Recipe), field: &str| {
        let mut other = recipe.clone();
        change(&mut other);
        let e = open(&other, options(0, 1)).load(&checkpoint).unwrap_err();
        assert!(e.message.contains(field), "{field}: {e}");
    };
    refused(|r| r.seed = 1, "seed");
    refused(|r| r.datasets[0].weight = 0.5, "dataset.a.weight");
    refused(|r| r.mixture.unit = Unit::Tokens, "mixture.unit");
    refused(|r| r.pack.max_length = 32, "pack.max_length");
    refused(|r| r.pack.algorithm = Algorithm::BestFit, "pack.algorithm");
    refused(|r| r.shuffle.buffer_size = 16, "shuffle.buffer_size");
    refused(|r| r.shuffle.documents = Order::None, "shuffle.documents");
    refused(|r| r.batch.global_batch = Steps::constant(32), "batch.global_batch");
    refused(|r| r.batch.lanes = Some(8), "batch.lanes");
    refused(|r| r.functions = vec!["clean 1".into()], "functions");
    let mut parts = parts(&recipe, &[100, 26], lens);
    parts.recipe = recipe.clone();
    let e = Loader::assemble(parts, options(0, 1)).unwrap().load(&checkpoint).unwrap_err();
    assert!(e.message.contains("dataset 'b'"), "{e}");
    let mut part = checkpoint.clone();
    part.lanes.remove(&11);
    assert!(open(&recipe, options(0, 1)).load(&part).unwrap_err().message.contains("no state of lane 11"));
    open(&recipe, options(0, 2)).load(&part).unwrap();
}

#[test]
fn a_lane_gives_the_same_rows_alone_as_among_256() {
    let mut recipe = recipe();
    recipe.batch.global_batch = Steps::constant(256);
    let mut all = open(&recipe, Options { threads: 2, prefetch: 1, ..options(0, 1) });
    let mut alone = [0, 77, 255].map(|rank| (rank as usize, open(&recipe, options(rank, 256))));
    for _ in 0..50 {
        let rows = all.next(None).unwrap().unwrap().row_hashes();
        for (lane, loader) in &mut alone {
            assert_eq!(loader.next(None).unwrap().unwrap().row_hashes(), rows[*lane..*lane + 1]);
        }
    }
}

#[test]
fn a_step_is_found_by_seeking() {
    for recipe in [&recipes()[0], &recipes()[10]] {
        let expected = hashes(&mut world(recipe, 1, |_| ()), 40);
        let mut loaders = world(recipe, 2, |_| ());
        for step in [30u64, 5, 5, 0, 37] {
            loaders.iter_mut().for_each(|l| l.seek(step).unwrap());
            assert_eq!(hashes(&mut loaders, 2), expected[step as usize..][..2], "at {step}");
        }
    }
}

#[test]
fn a_batch_schedule_takes_more_rows_from_its_step_on() {
    let mut recipe = recipe();
    recipe.batch.global_batch = Steps::new(vec![(0, 8), (5, 24)]).unwrap();
    let mut loader = open(&recipe, options(0, 1));
    let sizes: Vec<usize> = (0..8).map(|_| loader.next(None).unwrap().unwrap().rows().len()).collect();
    assert_eq!(sizes, [8, 8, 8, 8, 8, 24, 24, 24]);
    let expected = hashes(&mut world(&recipe, 1, |_| ()), 12);
    assert_eq!(hashes(&mut world(&recipe, 4, |o| o.threads = 2), 12), expected);
}

#[test]
fn weights_set_during_a_run_hold_from_their_step_on_every_rank_and_after_a_restore() {
    let mut recipe = recipe();
    recipe.shuffle.buffer_size = 0;
    // Windows of 64 rows a lane, one row a step: the weights hold from step 64 on, whatever was made ahead.
    let set = |loaders: &mut [Loader], step: u64| loaders.iter_mut().for_each(|l| l.set_mixture(vec![0.0, 1.0], step).unwrap());
    let mut one = world(&recipe, 1, |_| ());
    set(&mut one, 20);
    let expected = hashes(&mut one, 90);
    let plain = hashes(&mut world(&recipe, 1, |_| ()), 90);
    assert_eq!(expected[..64], plain[..64]);
    assert_ne!(expected[66..], plain[66..]);
    let mut late = world(&recipe, 2, |o| (o.threads, o.prefetch) = (2, 16));
    let mut done = hashes(&mut late, 60);
    set(&mut late, 60);
    let e = late[0].set_mixture(vec![1.0, 1.0], 59).unwrap_err();
    assert_eq!(e.message, "from_step 59 has begun; the first step whose weights can still be set is 60");
    let checkpoint = saved(&late, true);
    let mut resumed = world(&recipe, 4, |_| ());
    resumed.iter_mut().for_each(|l| l.load(&checkpoint).unwrap());
    done.extend(hashes(&mut resumed, 30));
    assert_eq!(done, expected);
}

/// All steps of a finite stream on some ranks: hashes, and each row's source, document and start.
fn whole(recipe: &Recipe, documents: &[u64], ranks: u32, lens: Lens) -> (Vec<u64>, Vec<(u16, u64, u32)>, u64) {
    let mut loaders: Vec<Loader> = (0..ranks).map(|r| Loader::assemble(parts(recipe, documents, lens), options(r, ranks)).unwrap()).collect();
    let steps = loaders[0].steps().unwrap().unwrap();
    let (mut all, mut pieces, mut padding) = (Vec::new(), Vec::new(), 0);
    for _ in 0..steps {
        let mut rows = Vec::new();
        let mut microbatches = Vec::new();
        for loader in &mut loaders {
            let batch = loader.next(None).unwrap().expect("all ranks have the same number of steps");
            microbatches.push(batch.microbatches());
            padding += batch.rows().iter().filter(|r| r.of.is_some() && r.pieces.is_empty()).count() as u64;
            pieces.extend(batch.rows().iter().flat_map(|r| &r.pieces).map(|p| (p.source, p.document, p.start)));
            rows.extend(batch.row_hashes());
        }
        assert!(microbatches.iter().all(|m| *m == microbatches[0]));
        all.push(global_hash(rows));
    }
    assert!(loaders.iter_mut().all(|l| l.next(None).unwrap().is_none()));
    pieces.sort();
    (all, pieces, padding)
}

#[test]
fn a_finite_stream_delivers_every_document_once_on_any_number_of_ranks() {
    for (documents, algorithm) in
        [([300, 70], Algorithm::Wrap), ([5, 3], Algorithm::None), ([41, 2], Algorithm::BestFit), ([300, 70], Algorithm::BestFitWrap)]
    {
        let mut recipe = recipe();
        recipe.pack.algorithm = algorithm;
        recipe.datasets.iter_mut().for_each(|d| d.exhausted = Exhausted::Redistribute);
        for buffer in [0, 160] {
            recipe.shuffle.buffer_size = buffer;
            let (hashes, pieces, padding) = whole(&recipe, &documents, 1, |_, d| 1 + (d % 14) as u32);
            let starts: Vec<(u16, u64)> = pieces.iter().filter(|p| p.2 == 0).map(|p| (p.0, p.1)).collect();
            let all: Vec<(u16, u64)> = (0..2u16).flat_map(|s| (0..documents[usize::from(s)]).map(move |d| (s, d))).collect();
            assert_eq!(starts, all, "{documents:?}, {algorithm:?}: the last document too");
            assert!(padding < 16, "less than one step is padding");
            for ranks in [2, 3, 8, 16] {
                assert_eq!(whole(&recipe, &documents, ranks, |_, d| 1 + (d % 14) as u32).0, hashes, "{documents:?} on {ranks} ranks");
            }
        }
    }
}

#[test]
fn a_finite_stream_resumes_at_every_step_on_other_ranks() {
    let mut recipe = recipe();
    recipe.datasets.iter_mut().for_each(|d| d.exhausted = Exhausted::Redistribute);
    let (expected, ..) = whole(&recipe, &[100, 25], 1, lens);
    let mut loaders = world(&recipe, 2, |_| ());
    for step in 0..expected.len() {
        let checkpoint = saved(&loaders, false);
        hashes(&mut loaders, 1);
        let mut resumed = world(&recipe, 4, |_| ());
        resumed.iter_mut().for_each(|l| l.load(&checkpoint).unwrap());
        assert_eq!(hashes(&mut resumed, (expected.len() - step) as u64), expected[step..], "resumed at {step}");
        assert!(resumed.iter_mut().all(|l| l.next(None).unwrap().is_none()));
    }
}

#[test]
fn a_tail_is_dropped_once_for_the_whole_stream() {
    // 1003 documents, one a row, 8 a step: 125 steps whatever the ranks and threads, and 3 rows dropped.
    let mut recipe = Recipe::new(vec![DatasetRecipe { exhausted: Exhausted::Stop, ..DatasetRecipe::new(DatasetSpec::new("a", ["a"])) }], "t", 16, 8);
    (recipe.pack.algorithm, recipe.batch.tail) = (Algorithm::None, Tail::Drop);
    let (expected, pieces, padding) = whole(&recipe, &[1003], 1, |_, _| 5);
    assert_eq!((expected.len(), pieces.len(), padding), (125, 1000, 0));
    for ranks in [2, 4, 8] {
        assert_eq!(whole(&recipe, &[1003], ranks, |_, _| 5).0, expected);
    }
    for threads in [1, 2, 7] {
        let options = Options { threads, prefetch: 4, ..options(0, 1) };
        let mut loader = Loader::assemble(parts(&recipe, &[1003], |_, _| 5), options).unwrap();
        assert_eq!(hashes(std::slice::from_mut(&mut loader), 125), expected, "{threads} threads");
        assert!(loader.next(None).unwrap().is_none());
    }
}

#[test]
fn a_checkpoint_stays_small_and_its_size_does_not_grow_with_depth_or_with_documents() {
    let size = |unit, lens: Lens, step| {
        let mut recipe = recipe();
        (recipe.mixture.unit, recipe.batch.global_batch) = (unit, Steps::constant(256));
        let mut loader = Loader::assemble(parts(&recipe, &[20_000, 4_000], lens), Options { threads: 1, ..options(0, 1) }).unwrap();
        (0..step).for_each(|_| drop(loader.next(None).unwrap()));
        loader.save().to_bytes().len()
    };
    for (unit, a_lane) in [(Unit::Samples, 96), (Unit::Tokens, 160)] {
        let (near, far, long) = (size(unit, |_, _| 9, 60), size(unit, |_, _| 9, 300), size(unit, |_, _| 18, 300));
        assert!(far <= 2048 + 256 * a_lane, "{unit:?}: {far} bytes");
        assert!(far < near + 256 * 4 && long < near + 256 * 4, "{unit:?}: {near}, then {far}, and {long} with longer documents");
    }
}

#[test]
fn a_row_is_found_again_by_running_its_lane_alone() {
    let recipe = recipe();
    let parts = parts(&recipe, &[300, 70], lens);
    let mut loader = Loader::assemble(parts.clone(), options(0, 1)).unwrap();
    let mut near = None;
    for step in 0..30 {
        let batch = loader.next(None).unwrap().unwrap();
        if step % 10 == 9 {
            for row in [0, 7, 15] {
                let found = inspect(&parts, &options(0, 1), step, row, near.as_ref()).unwrap();
                let shown: Vec<_> = found.pieces.iter().map(|p| (p.document, p.start, p.tokens.clone())).collect();
                let expected: Vec<_> = batch.rows()[row as usize].pieces.iter().map(|p| (p.document, p.start, p.tokens().to_vec())).collect();
                assert_eq!((shown, u64::from(found.lane)), (expected, row));
            }
            near = Some(loader.save());
        }
    }
    let mut loader = Loader::assemble(parts.clone(), options(0, 1)).unwrap();
    loader.set_mixture(vec![0.0, 1.0], 1).unwrap();
    let batches: Vec<_> = (0..30).map(|_| loader.next(None).unwrap().unwrap()).collect();
    for near in [10, 29] {
        let found = inspect(&parts, &options(0, 1), near, 3, Some(&loader.save())).unwrap();
        let shown: Vec<_> = found.pieces.iter().map(|p| (p.document, p.start)).collect();
        let expected: Vec<_> = batches[near as usize].rows()[3].pieces.iter().map(|p| (p.document, p.start)).collect();
        assert_eq!(shown, expected, "with the weights that the checkpoint tells of, whether or not it lies before");
    }
    assert!(inspect(&parts, &options(0, 1), 3, 16, None).unwrap_err().message.contains("rows 0 to 15"));
}

#[test]
fn verify_proves_the_promise_and_finds_a_difference() {
    let recipe = recipe();
    let ask = VerifyOptions { ranks: vec![1, 2, 3, 16], steps: 20, resume_at: Some(9) };
    let mut told = (0, 0);
    let verified = verify(&parts(&recipe, &[300, 70], lens), &options(0, 1), &ask, &mut |done, total| told = (done, total)).unwrap();
    assert_eq!((verified.runs.len(), told), (8, (124, 124)));
    assert!(verified.first_difference().is_none());
    let mut wrong = verified.clone();
    wrong.runs[5].hashes[2] ^= 1;
    let (run, step) = wrong.first_difference().unwrap();
    assert_eq!((run.name().as_str(), step), ("2 ranks, resumed from 1", 11));
}

#[test]
fn a_plan_is_explained_in_words() {
    let mut recipe = recipe();
    recipe.mixture.schedule = vec![(50, vec![1.0, 3.0])];
    recipe.datasets[1].exhausted = Exhausted::Redistribute;
    let text = explain(&parts(&recipe, &[300, 70], lens), &options(1, 4)).unwrap();
    for part in [
        "a: 300 documents",
        "0.7692 of the documents",
        "rank 1 of 4 owns lanes 4 to 7",
        "from step 50: a 0.2500, b 0.7500",
        "after 1 epoch\n",
        "resumes unchanged on 1, 2, 4, 8, 16 ranks",
    ] {
        assert!(text.contains(part), "'{part}' is missing in:\n{text}");
    }
}

/// Drops every third document, cuts the others to 20 tokens, and swaps neighbours, also across rows and anchors.
#[derive(Default)]
struct Swap {
    count: u8,
    held: Vec<Piece>,
}

impl Operator for Swap {
    fn push(&mut self, piece: Piece, out: &mut Vec<Piece>) -> Result<()> {
        self.count = (self.count + 1) % 3;
        if self.count > 0 {
            assert_eq!(piece.tokens().len(), piece.len as usize, "pieces that were held have their tokens again");
            self.held.push(piece.part(0..piece.len.min(20)));
        }
        if self.held.len() == 2 {
            out.extend(self.held.drain(..).rev());
        }
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<Piece>) -> Result<()> {
        out.append(&mut self.held);
        Ok(())
    }

    fn held(&mut self) -> Vec<&mut Piece> {
        self.held.iter_mut().collect()
    }

    fn save(&mut self) -> Result<Vec<u8>> {
        Ok(vec![self.count])
    }

    fn load(&mut self, state: &[u8], held: Vec<Piece>) -> Result<()> {
        (self.count, self.held) = (state[0], held);
        Ok(())
    }
}

#[test]
fn a_users_operator_keeps_its_state_over_any_cut_and_number_of_ranks() {
    for exhausted in [Exhausted::Repeat, Exhausted::Redistribute] {
        let mut recipe = recipe();
        recipe.datasets.iter_mut().for_each(|d| d.exhausted = exhausted);
        recipe.functions = vec!["swap 1".into()];
        let world = |ranks: u32, threads| -> Vec<Loader> {
            let mut parts = parts(&recipe, &[100, 25], lens);
            parts.operators = vec![OperatorMaker { name: "swap 1".into(), make: Arc::new(|_| Box::new(Swap::default())) }];
            (0..ranks).map(|r| Loader::assemble(parts.clone(), Options { threads, ..options(r, ranks) }).unwrap()).collect()
        };
        let mut one = world(1, 0);
        let steps = one[0].steps().unwrap().unwrap_or(40);
        assert!(steps > 3);
        let expected = hashes(&mut one, steps);
        let mut two = world(2, 2);
        for step in 0..steps.min(30) {
            let checkpoint = saved(&two, true);
            hashes(&mut two, 1);
            let mut resumed = world(4, 0);
            resumed.iter_mut().for_each(|l| l.load(&checkpoint).unwrap());
            let n = 3.min(steps - step);
            assert_eq!(hashes(&mut resumed, n), expected[step as usize..][..n as usize], "{exhausted:?}, resumed at {step}");
        }
    }
}
