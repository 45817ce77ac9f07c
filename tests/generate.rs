//! Teachers as operators: the same rows and the same teachers' tensors for any number of workers, ranks, deaths and resumes,
//! over a real broker, with workers that make their own inputs from the recipe.

mod common;
mod lanes_common;

use common::{Room, patience};
use lanes_common::byte_tokenizer;
use laneway::base::{Status, mix};
use laneway::exchange::worker::{Task, Worker, WorkerOptions};
use laneway::loader::{Loader, Options, Rows};
use laneway::os::clock;
use laneway::pipeline::{Batch, Checkpoint, Function, GenerateOptions, Meta, TextFunction, global_hash};
use laneway::recipe::Recipe;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const RECIPE: &str = r#"
    seed = 7
    [[dataset]]
    name = "wiki"
    paths = "wiki.jsonl"
    [[dataset]]
    name = "news"
    paths = "news.jsonl"
    weight = 0.5
    [tokenizer]
    path = "tokenizer.json"
    [pack]
    max_length = 64
    [shuffle]
    buffer_size = 64
    [batch]
    global_batch = 8
    [generate]
    model_id = "first"
    model_cfg = { layer = 3 }
    layout = [{ name = "top", shape = [5], dtype = "int64" }, { name = "sum", shape = [], dtype = "int64" }]
    batch_size = 4
"#;

/// Data, a recipe and a broker of one's own.
struct House {
    dir: TempDir,
    room: Room,
    broker: Broker,
}

/// The `laneway broker` program, killed at the end.
struct Broker(std::process::Child);

impl Broker {
    fn start(room: &Room) -> Broker {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_laneway"));
        let child = command.args(["broker", "--log", "error"]).env("LANEWAY_DIR", &room.dir).spawn().unwrap();
        let broker = Broker(child);
        laneway::exchange::ask::stats(&room.endpoints.frontend, Instant::now() + Duration::from_secs(60)).expect("the broker answers");
        broker
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // SIGKILL.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn house(change: impl Fn(String) -> String) -> House {
    let dir = TempDir::new().unwrap();
    byte_tokenizer(dir.path());
    for (name, documents) in [("wiki", 200), ("news", 60)] {
        let line = |n: usize| format!("{{\"text\":\"{name}{n}:{}\"}}\n", "x".repeat(n * 37 % 90));
        std::fs::write(dir.path().join(format!("{name}.jsonl")), (0..documents).map(line).collect::<String>()).unwrap();
    }
    std::fs::write(dir.path().join("recipe.toml"), change(RECIPE.to_string())).unwrap();
    let room = Room::new();
    House { broker: Broker::start(&room), dir, room }
}

impl House {
    /// Another broker, in the place of one that was killed.
    fn kill_broker(&mut self) {
        let killed = std::mem::replace(&mut self.broker.0, std::process::Command::new("true").spawn().unwrap());
        drop(Broker(killed));
        self.broker = Broker::start(&self.room);
    }

    fn recipe(&self) -> Recipe {
        Recipe::load(&self.dir.path().join("recipe.toml")).unwrap()
    }

    fn options(&self) -> Options {
        Options { threads: 1, cache_dir: Some(self.dir.path().join("cache")), generate: None, ..Options::default() }
    }

    fn loader(&self, rank: u32, ranks: u32) -> Loader {
        self.loader_with(rank, ranks, |_, _| ())
    }

    fn loader_with(&self, rank: u32, ranks: u32, change: impl FnOnce(&mut Options, &mut GenerateOptions)) -> Loader {
        let endpoints = Some(self.room.endpoints.clone());
        let mut generate = GenerateOptions { endpoints, group: Some("test".into()), connect: Duration::from_secs(60), ..GenerateOptions::default() };
        let mut options = Options { rank, ranks, ..self.options() };
        change(&mut options, &mut generate);
        options.generate = Some(generate);
        Loader::open(self.recipe(), options, &[]).unwrap()
    }

    /// A teacher that makes its own rows, until `stop`; `fault` may have it give a task up, or die of it.
    fn teach(&self, batch_size: u32, stop: &AtomicBool, fault: &(dyn Fn(&Task) -> Fault + Sync)) {
        let mut rows = Rows::open(self.recipe(), self.options(), &[]).unwrap();
        let mut options = WorkerOptions::new(self.room.endpoints.clone());
        (options.layout, options.batch_size) = (Some(self.recipe().generate.unwrap().layout), batch_size);
        let worker = Worker::open(options, patience()).unwrap();
        let mut tasks = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            tasks.clear();
            match worker.take(batch_size, &mut tasks, clock::after(Duration::from_millis(20))) {
                Ok(()) => {}
                Err(e) if e.status == Status::Timeout => continue,
                Err(e) => panic!("{e}"),
            }
            let run: Meta = serde_json::from_str(tasks[0].model.run.as_deref().unwrap()).unwrap();
            rows.follow(&run, tasks.iter().map(|t| t.step).max().unwrap()).unwrap();
            let tickets: Vec<(u64, u64)> = tasks.iter().map(|t| (t.lane, t.step)).collect();
            let batch = rows.get(&tickets, None).unwrap();
            for (i, task) in tasks.iter().enumerate() {
                match fault(task) {
                    Fault::None => {
                        fill(&worker, task, &batch.input_ids()[i * batch.length()..][..batch.length()]);
                        worker.commit(&[(task.id, task.capacity)]).unwrap();
                    }
                    Fault::Fail => worker.fail(task.id, "the teacher had enough").unwrap(),
                    // Leaves with its tasks in hand, which go back.
                    Fault::Leave => return,
                }
            }
        }
    }
}

/// A teacher that is given its rows and has neither recipe nor data.
fn teach_given(house: &House, stop: &AtomicBool) {
    let mut options = WorkerOptions::new(house.room.endpoints.clone());
    (options.layout, options.batch_size) = (Some(house.recipe().generate.unwrap().layout), 3);
    let worker = Worker::open(options, patience()).unwrap();
    let mut tasks = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        tasks.clear();
        if worker.take(3, &mut tasks, clock::after(Duration::from_millis(20))).is_err() {
            continue;
        }
        for task in &tasks {
            let input = task.input.as_ref().unwrap();
            let at = input.layout.offset(input.layout.find("input_ids").unwrap());
            let words = input.data.bytes()[at..at + 64 * 8].chunks_exact(8);
            fill(&worker, task, &words.map(|w| i64::from_le_bytes(w.try_into().unwrap())).collect::<Vec<_>>());
        }
        worker.commit(&tasks.iter().map(|t| (t.id, t.capacity)).collect::<Vec<_>>()).unwrap();
    }
}

enum Fault {
    None,
    Fail,
    Leave,
}

fn no_fault(_: &Task) -> Fault {
    Fault::None
}

/// What the teacher makes of a row follows from its tokens, the ticket's seed and the model.
fn expected(ids: &[i64], seed: u64, model: &str) -> [i64; 6] {
    let start = model.bytes().fold(seed, |h, b| mix(h ^ u64::from(b)));
    let h = ids.iter().fold(start, |h, id| mix(h ^ *id as u64));
    let mut out = [0; 6];
    (0..5).for_each(|i| out[i] = mix(h ^ i as u64) as i64);
    out[5] = ids.iter().sum();
    out
}

/// What a teacher of samples of different lengths makes: so many pairs of numbers.
fn expected_pairs(made: [i64; 6]) -> Vec<i64> {
    (0..2 * made[5].rem_euclid(10)).map(|i| made[0].wrapping_add(i)).collect()
}

fn fill(worker: &Worker, task: &Task, ids: &[i64]) {
    let model = format!("{} {}", task.model.id, task.model.config.as_deref().unwrap_or("none"));
    let made = expected(ids, task.seed, &model);
    if task.layout.is_ragged() {
        let pairs = expected_pairs(made);
        worker.set_length(task.id, "n", pairs.len() as u64 / 2).unwrap();
        // SAFETY: the task's memory is `capacity` bytes, aligned to 64, and ours until commit; there is room for 9 pairs, and then for "sum".
        unsafe {
            std::ptr::copy_nonoverlapping(pairs.as_ptr(), task.data.cast::<i64>(), pairs.len());
            task.data.add(task.layout.offset(1)).cast::<i64>().write(made[5]);
        }
        return;
    }
    // SAFETY: the task's memory is `capacity` bytes, aligned to 64, and ours until commit; "sum" lies at 64.
    unsafe {
        std::ptr::copy_nonoverlapping(made.as_ptr(), task.data.cast::<i64>(), 5);
        task.data.cast::<i64>().add(8).write(made[5]);
    }
}

/// Checks the teacher's tensors of every row of a batch.
fn check(batch: &Batch, model: &str) {
    let taught = batch.taught().expect("the recipe has teachers");
    if taught.layout().is_ragged() {
        return check_pairs(batch, model);
    }
    assert_eq!((taught.shape(0), taught.shape(1)), (&[batch.rows().len() as i64, 5][..], &[batch.rows().len() as i64][..]));
    for (i, row) in batch.rows().iter().enumerate() {
        // A row that only fills up a microbatch has none.
        let (lane, number) = row.of.unwrap_or((0, 0));
        let seed = laneway::base::ticket_seed(7, u64::from(lane), number);
        let ids = &batch.input_ids()[i * batch.length()..][..batch.length()];
        let made = if row.pieces.is_empty() { [0; 6] } else { expected(ids, seed, model) };
        // SAFETY: the tensors are as long as their shapes say.
        let (top, sum) = unsafe {
            let top = std::slice::from_raw_parts(taught.start(0).cast::<i64>().add(i * 5), 5);
            (top, taught.start(1).cast::<i64>().add(i).read())
        };
        assert_eq!((top, sum), (&made[..5], made[5]), "row {number} of lane {lane}, model {model}");
    }
}

fn check_pairs(batch: &Batch, model: &str) {
    let taught = batch.taught().unwrap();
    let rows = batch.rows().len();
    let names: Vec<&str> = taught.columns().iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["top", "sum", "n_lengths", "n_mask"]);
    let size = taught.shape(0)[1] as usize;
    assert_eq!((taught.shape(0), taught.shape(1), taught.shape(2)), (&[rows as i64, size as i64, 2][..], &[rows as i64][..], &[rows as i64][..]));
    assert_eq!(taught.shape(3), [rows as i64, size as i64]);
    // SAFETY: the tensors are as long as their shapes say.
    let (top, sum, lengths, mask) = unsafe {
        let words = |i: usize, count| std::slice::from_raw_parts(taught.start(i).cast::<i64>(), count);
        (words(0, rows * size * 2), words(1, rows), words(2, rows), std::slice::from_raw_parts(taught.start(3), rows * size))
    };
    for (i, row) in batch.rows().iter().enumerate() {
        let (lane, number) = row.of.unwrap_or((0, 0));
        let ids = &batch.input_ids()[i * batch.length()..][..batch.length()];
        let made = expected(ids, laneway::base::ticket_seed(7, u64::from(lane), number), model);
        let mut pairs = if row.pieces.is_empty() { Vec::new() } else { expected_pairs(made) };
        let length = pairs.len() / 2;
        assert_eq!((lengths[i], sum[i]), (length as i64, if row.pieces.is_empty() { 0 } else { made[5] }));
        assert!(mask[i * size..][..size].iter().enumerate().all(|(at, is)| *is == u8::from(at < length)), "row {number} of lane {lane}");
        pairs.resize(2 * size, 0);
        assert_eq!(top[i * 2 * size..][..2 * size], pairs, "row {number} of lane {lane}");
    }
}

const FIRST: &str = "first {\"layer\":3}";

/// Hashes of the global batches of `steps` steps of all ranks together; each rank is a thread, as each is a process elsewhere.
fn hashes(loaders: &mut [Loader], steps: u64, model: impl Fn(u64) -> &'static str + Sync) -> BTreeMap<u64, u64> {
    let mut rows: BTreeMap<u64, Vec<(u32, Vec<u64>)>> = BTreeMap::new();
    let run = |(rank, loader): (usize, &mut Loader)| {
        let mut all = Vec::new();
        let end = loader.step() + steps;
        while loader.step() < end {
            let Some(batch) = loader.next(Some(Instant::now() + Duration::from_secs(60))).unwrap() else { break };
            check(&batch, model(batch.step()));
            all.push((batch.step(), rank as u32, batch.row_hashes()));
        }
        all
    };
    let run = &run;
    std::thread::scope(|s| {
        let threads: Vec<_> = loaders.iter_mut().enumerate().map(|l| s.spawn(move || run(l))).collect();
        for (step, rank, hashes) in threads.into_iter().flat_map(|t| t.join().unwrap()) {
            rows.entry(step).or_default().push((rank, hashes));
        }
    });
    let in_order = |mut parts: Vec<(u32, Vec<u64>)>| {
        parts.sort_by_key(|(rank, _)| *rank);
        global_hash(parts.into_iter().flat_map(|(_, hashes)| hashes))
    };
    rows.into_iter().map(|(step, parts)| (step, in_order(parts))).collect()
}

/// Runs `trainer` beside that many teachers.
fn beside<T>(house: &House, teachers: &[u32], fault: &(dyn Fn(&Task) -> Fault + Sync), trainer: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        teachers.iter().for_each(|batch| drop(s.spawn(|| house.teach(*batch, &stop, fault))));
        // Also where the trainer panics: the teachers would be waited for otherwise.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        trainer()
    })
}

#[test]
fn any_number_of_workers_ranks_and_depths_gives_the_same_rows_and_samples() {
    let house = house(|r| r);
    let alone = beside(&house, &[1], &no_fault, || hashes(&mut [house.loader(0, 1)], 30, |_| FIRST));
    assert_eq!(alone.len(), 30);
    for (teachers, ranks, micro, prefetch, window) in [
        (&[4, 4][..], 1, Some(3), 3, 0),
        (&[2, 1, 4, 3], 2, None, 0, 0),
        (&[1, 2], 4, Some(1), 1, 0),
        (&[4], 2, Some(2), 2, 2),
        (&[4], 8, None, 1, 1),
    ] {
        let shape = |options: &mut Options, generate: &mut GenerateOptions| {
            (options.microbatch_size, options.prefetch, options.uneven, generate.window) = (micro, prefetch, micro == Some(3), window);
        };
        let mut loaders: Vec<Loader> = (0..ranks).map(|rank| house.loader_with(rank, ranks, shape)).collect();
        let found = beside(&house, teachers, &no_fault, || hashes(&mut loaders, 30, |_| FIRST));
        assert_eq!(found, alone, "{} workers, {ranks} ranks, microbatches of {micro:?}, {prefetch} ahead, window {window}", teachers.len());
    }
}

#[test]
fn rows_that_travel_with_their_tickets_give_the_same_samples() {
    let house = house(|r| r);
    let expected = beside(&house, &[3], &no_fault, || hashes(&mut [house.loader(0, 1)], 25, |_| FIRST));
    let given = self::house(|r| r + "    input = \"tokens\"\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        (0..2).for_each(|_| drop(s.spawn(|| teach_given(&given, &stop))));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let shape = |o: &mut Options, _: &mut GenerateOptions| (o.microbatch_size, o.prefetch) = (Some(2), 2);
            let mut loaders = [given.loader_with(0, 2, shape), given.loader_with(1, 2, shape)];
            assert_eq!(hashes(&mut loaders, 25, |_| FIRST), expected);
            drop(loaders);
            // Cut and gone on with, and another model on the way.
            let mut one = given.loader(0, 1);
            assert_eq!(hashes(std::slice::from_mut(&mut one), 5, |_| FIRST), expected.clone().into_iter().take(5).collect());
            one.set_model("second", None, 6).unwrap();
            let state = one.save();
            let model = |step| if step < 6 { FIRST } else { "second none" };
            let first = hashes(std::slice::from_mut(&mut one), 6, model);
            drop(one);
            let mut other = given.loader(0, 1);
            other.load(&state).unwrap();
            assert_eq!(hashes(std::slice::from_mut(&mut other), 6, model), first);
        }));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

#[test]
fn workers_that_leave_with_tasks_in_hand_and_tasks_that_fail_at_first_change_nothing() {
    let house = house(|r| r);
    let alone = beside(&house, &[2], &no_fault, || hashes(&mut [house.loader(0, 1)], 25, |_| FIRST));
    let seen = AtomicU64::new(0);
    let fault = |task: &Task| match seen.fetch_add(1, Ordering::Relaxed) {
        n if n % 50 == 49 && n < 120 => Fault::Leave,
        _ if task.attempt == 0 && (task.lane + task.step).is_multiple_of(5) => Fault::Fail,
        _ => Fault::None,
    };
    let found = beside(&house, &[4, 4, 2, 1], &fault, || hashes(&mut [house.loader(0, 2), house.loader(1, 2)], 25, |_| FIRST));
    assert_eq!(found, alone);
}

#[test]
fn a_row_that_no_worker_can_make_names_lane_row_documents_and_text_until_the_loader_is_moved() {
    let house = house(|r| r);
    let fault = |task: &Task| if (task.lane, task.step) == (3, 2) { Fault::Fail } else { Fault::None };
    beside(&house, &[2, 2], &fault, || {
        let mut loader = house.loader(0, 1);
        hashes(std::slice::from_mut(&mut loader), 2, |_| FIRST);
        for _ in 0..2 {
            let e = loader.next(None).err().unwrap();
            assert_eq!(e.status, Status::TaskFailed);
            for part in ["row 2 of lane 3 (step 2; documents ", "failed after 3 attempts", "the teacher had enough"] {
                assert!(e.message.contains(part), "'{part}' is missing in: {e}");
            }
            assert!(e.message.contains("wiki ") || e.message.contains("news "), "{e}");
        }
        loader.seek(3).unwrap();
        check(&loader.next(None).unwrap().unwrap(), FIRST);
    });
}

#[test]
fn a_run_resumed_on_other_ranks_goes_on_with_the_model_of_each_step() {
    let house = house(|r| r);
    let model = |step: u64| match step {
        0..6 => FIRST,
        6..14 => "second none",
        _ => "third {\"layer\":1}",
    };
    let change = |loader: &mut Loader| {
        loader.set_model("second", None, 6).unwrap();
        loader.set_mixture(vec![0.2, 3.0], 9).unwrap();
        loader.set_model("third", Some(serde_json::json!({ "layer": 1 })), 14).unwrap();
    };
    let mut whole = house.loader(0, 1);
    change(&mut whole);
    let expected = beside(&house, &[3, 2], &no_fault, || hashes(std::slice::from_mut(&mut whole), 24, model));
    drop(whole);
    let mut first: Vec<Loader> = (0..2).map(|rank| house.loader(rank, 2)).collect();
    first.iter_mut().for_each(change);
    let mut found = beside(&house, &[4], &no_fault, || hashes(&mut first, 10, model));
    let mut state = Checkpoint::from_json(&first[0].save().to_json()).unwrap();
    state.merge(Checkpoint::from_bytes(&first[1].save().to_bytes()).unwrap()).unwrap();
    assert_eq!(state.meta.models.len(), 2);
    // A loader that asks nobody keeps what it does not need.
    let mut alone = Loader::open(house.recipe(), house.options(), &[]).unwrap();
    alone.load(&state).unwrap();
    assert_eq!(alone.save().meta, state.meta);
    drop(first);
    let mut rest: Vec<Loader> = (0..4).map(|rank| house.loader(rank, 4)).collect();
    rest.iter_mut().for_each(|l| l.load(&state).unwrap());
    found.extend(beside(&house, &[1, 4, 2], &no_fault, || hashes(&mut rest, 14, model)));
    assert_eq!(found, expected);
    drop(rest);
    // And back: an earlier state brings the earlier model and weights with it.
    let mut again = house.loader(0, 1);
    again.load(&state).unwrap();
    again.seek(3).unwrap();
    let found = beside(&house, &[4], &no_fault, || hashes(std::slice::from_mut(&mut again), 9, model));
    assert!(found.iter().all(|(step, hash)| expected[step] == *hash));
}

#[test]
fn a_broker_killed_between_the_setting_of_a_model_and_its_step_forgets_neither_it_nor_the_one_before() {
    let mut house = house(|r| r);
    let model = |step| if step < 3 { FIRST } else { "second none" };
    let mut one = house.loader(0, 1);
    one.set_model("second", None, 3).unwrap();
    let expected = beside(&house, &[3], &no_fault, || hashes(std::slice::from_mut(&mut one), 9, model));
    drop(one);
    let ahead = |prefetch| move |options: &mut Options, _: &mut GenerateOptions| options.prefetch = prefetch;
    let mut ranks = [house.loader_with(0, 2, ahead(2)), house.loader_with(1, 2, ahead(0))];
    ranks.iter_mut().for_each(|rank| rank.set_model("second", None, 3).unwrap());
    let mut parts: [Vec<Vec<u64>>; 2] = Default::default();
    let mut take = |ranks: &mut [Loader; 2], rank: usize, until: u64| {
        while ranks[rank].step() < until {
            let batch = ranks[rank].next(Some(Instant::now() + Duration::from_secs(60))).unwrap().unwrap();
            check(&batch, model(batch.step()));
            parts[rank].push(batch.row_hashes());
        }
    };
    // Rank 0 has asked for step 3, and so set the second model, while rank 1 has asked for step 0 alone.
    beside(&house, &[4], &no_fault, || (take(&mut ranks, 0, 2), take(&mut ranks, 1, 1)));
    house.kill_broker();
    // These workers are new, too: what they know of models is what the new broker knows.
    beside(&house, &[4, 2], &no_fault, || (take(&mut ranks, 1, 9), take(&mut ranks, 0, 9)));
    let found = (0..9).map(|step| (step, global_hash(parts.iter().flat_map(|rank| rank[step as usize].clone()))));
    assert_eq!(found.collect::<BTreeMap<u64, u64>>(), expected);
}

#[test]
fn samples_of_different_lengths_are_filled_up_and_no_row_depends_on_who_made_it_or_how_steps_are_cut() {
    let ragged = |more: &'static str| {
        house(move |r| {
            let text = r.replace(r#"name = "top", shape = [5]"#, r#"name = "top", shape = ["n<=9", 2]"#);
            assert_ne!(text, RECIPE);
            text + more
        })
    };
    let longest = ragged("");
    let alone = beside(&longest, &[1], &no_fault, || hashes(&mut [longest.loader(0, 1)], 20, |_| FIRST));
    let seen = AtomicU64::new(0);
    let fault = |task: &Task| match seen.fetch_add(1, Ordering::Relaxed) {
        40 | 90 => Fault::Leave,
        _ if task.attempt == 0 && (task.lane + task.step).is_multiple_of(7) => Fault::Fail,
        _ => Fault::None,
    };
    let (given, max, fours) = (ragged("    input = \"tokens\"\n"), ragged("    pad_to = \"max\"\n"), ragged("    pad_to = 4\n"));
    for (house, teachers, ranks, micro) in [(&longest, &[4, 4, 2, 1][..], 2, Some(1)), (&max, &[2, 3], 4, None), (&fours, &[4], 1, Some(3))] {
        seen.store(0, Ordering::Relaxed);
        let shape = |o: &mut Options, _: &mut GenerateOptions| (o.microbatch_size, o.uneven) = (micro, micro == Some(3));
        let mut loaders: Vec<Loader> = (0..ranks).map(|rank| house.loader_with(rank, ranks, shape)).collect();
        let found = beside(house, teachers, if teachers.len() > 2 { &fault } else { &no_fault }, || hashes(&mut loaders, 20, |_| FIRST));
        assert_eq!(found, alone, "{} workers, {ranks} ranks", teachers.len());
    }
    // A row that travels with its ticket is taught the same, and the size of the batch is as asked.
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| teach_given(&given, &stop));
        let found = std::panic::catch_unwind(|| hashes(&mut [given.loader(0, 1)], 20, |_| FIRST));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(found.unwrap(), alone);
    });
    for (house, sizes) in [(&longest, 1..=9), (&max, 9..=9), (&fours, 4..=12)] {
        let mut loader = house.loader(0, 1);
        let batch = beside(house, &[4], &no_fault, || loader.next(Some(Instant::now() + Duration::from_secs(60))).unwrap().unwrap());
        let size = batch.taught().unwrap().shape(0)[1];
        assert!(sizes.contains(&size) && (*sizes.end() != 12 || size % 4 == 0), "{size} of {sizes:?}");
    }
}

#[test]
fn samples_asked_for_before_their_model_was_changed_are_made_anew() {
    let house = house(|r| r);
    let given = self::house(|r| r + "    input = \"tokens\"\n");
    let model = |step| if step < 3 { FIRST } else { "third none" };
    // More than the window holds, so that some tickets wait to be opened.
    let ahead = |o: &mut Options, g: &mut GenerateOptions| (o.prefetch, g.window) = (4, 10);
    let mut early = house.loader(0, 1);
    early.set_model("third", None, 3).unwrap();
    let expected = beside(&house, &[3], &no_fault, || hashes(std::slice::from_mut(&mut early), 8, model));
    drop(early);
    // Steps up to 5 are asked for, and some of them made, when step 3's model is set, and set again.
    let run = |house: &House| {
        let mut late = house.loader_with(0, 1, ahead);
        let mut found = hashes(std::slice::from_mut(&mut late), 2, model);
        late.set_model("second", None, 3).unwrap();
        found.extend(hashes(std::slice::from_mut(&mut late), 1, model));
        late.set_model("third", None, 3).unwrap();
        found.extend(hashes(std::slice::from_mut(&mut late), 5, model));
        found
    };
    assert_eq!(beside(&house, &[4, 2], &no_fault, || run(&house)), expected);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| teach_given(&given, &stop));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&given)));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(found.unwrap(), expected);
    });
}

/// A step's model is looked up before its first row is made. Where that row is late and went with no ticket, another model may still be set for it.
#[test]
fn a_model_that_is_set_after_the_first_row_of_its_step_was_late_makes_that_row() {
    let given = house(|r| format!("functions = [\"slow 1\"]\n{r}    input = \"tokens\"\n"));
    let open = Arc::new(AtomicBool::new(false));
    let gate = open.clone();
    let slow = TextFunction::Filter(Arc::new(move |_| {
        while !gate.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }));
    let endpoints = Some(given.room.endpoints.clone());
    let generate = Some(GenerateOptions { endpoints, connect: Duration::from_secs(60), ..GenerateOptions::default() });
    let options = Options { generate, ..given.options() };
    let mut loader = Loader::open(given.recipe(), options, &[Function { name: "slow 1".into(), function: slow }]).unwrap();
    loader.set_model("second", None, 0).unwrap();
    let late = loader.next(Some(Instant::now() + Duration::from_secs(2))).err().unwrap();
    assert_eq!(late.status, Status::Timeout, "{late}");
    loader.set_model("third", None, 0).unwrap();
    open.store(true, Ordering::Relaxed);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| teach_given(&given, &stop));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hashes(std::slice::from_mut(&mut loader), 2, |_| "third none")));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(found.unwrap().len(), 2);
    });
}

#[test]
fn a_rank_may_hear_of_a_change_later_than_another_as_long_as_its_step_has_not_come() {
    let house = house(|r| r);
    let model = |step| if step < 14 { FIRST } else { "second none" };
    let change = |loader: &mut Loader| {
        loader.set_mixture(vec![1.0, 4.0], 12).unwrap();
        loader.set_model("second", None, 14).unwrap();
    };
    let mut one = house.loader(0, 1);
    change(&mut one);
    let expected = beside(&house, &[3], &no_fault, || hashes(std::slice::from_mut(&mut one), 24, model));
    drop(one);
    let mut ranks = [house.loader(0, 2), house.loader(1, 2)];
    change(&mut ranks[0]);
    let found = beside(&house, &[3, 2], &no_fault, || {
        let mut found = hashes(&mut ranks, 2, model);
        change(&mut ranks[1]);
        found.extend(hashes(&mut ranks, 22, model));
        found
    });
    assert_eq!(found, expected);
}

#[test]
fn a_change_that_comes_too_late_names_the_first_step_that_is_left() {
    let house = house(|r| r);
    beside(&house, &[4], &no_fault, || {
        let mut loader = house.loader_with(0, 1, |o, _| o.microbatch_size = Some(4));
        loader.next(None).unwrap();
        for e in [loader.set_model("late", None, 0).unwrap_err(), loader.set_mixture(vec![1.0, 1.0], 0).unwrap_err()] {
            assert!(e.status == Status::InvalidArgument && e.message.contains("first step whose") && e.message.ends_with("is 1"), "{e}");
        }
        // What was asked for ahead is made anew.
        loader.set_model("second", None, 1).unwrap();
        assert_eq!(hashes(std::slice::from_mut(&mut loader), 4, |step| if step == 0 { FIRST } else { "second none" }).len(), 4);
        let e = loader.set_model("x", Some(serde_json::json!(3)), 50).unwrap_err();
        assert!(e.message.contains("not a JSON object"), "{e}");
    });
    let mut rows_alone = Loader::open(house.recipe(), house.options(), &[]).unwrap();
    assert_eq!(rows_alone.set_model("x", None, 9).unwrap_err().status, Status::Unsupported);
    let told = rows_alone.explain();
    assert!(told.contains("of each row, workers make top [5] int64, sum [] int64 (72 bytes) with model 'first'"), "{told}");
    assert!(rows_alone.next(None).unwrap().unwrap().taught().is_none());
}

#[test]
fn ranks_that_were_told_different_things_wait_for_each_other_and_say_so() {
    let house = house(|r| r);
    beside(&house, &[4], &no_fault, || {
        let (mut zero, mut one) = (house.loader(0, 2), house.loader(1, 2));
        zero.set_model("one", None, 0).unwrap();
        one.set_model("other", None, 0).unwrap();
        zero.next(None).unwrap();
        let e = one.next(Some(Instant::now() + Duration::from_millis(400))).err().unwrap();
        assert!(e.status == Status::Timeout && e.message.contains("rank 0 has not set model 'other'"), "{e}");
        one.set_model("one", None, 0).unwrap();
        check(&one.next(None).unwrap().unwrap(), "one none");
    });
}

#[test]
fn a_stream_that_ends_has_samples_of_its_last_rows_and_zeroes_in_its_padding() {
    let house = house(|r| r.replace("[[dataset]]\n", "[[dataset]]\n    exhausted = \"redistribute\"\n"));
    let (alone, of_four) = beside(&house, &[3, 4], &no_fault, || {
        let alone = hashes(&mut [house.loader(0, 1)], 1000, |_| FIRST);
        let mut four: Vec<Loader> = (0..4).map(|rank| house.loader(rank, 4)).collect();
        (alone, hashes(&mut four, 1000, |_| FIRST))
    });
    assert!(alone.len() > 10 && alone.len() < 1000);
    assert_eq!(alone, of_four);
}

#[test]
fn a_deadline_holds_while_nobody_answers_and_a_worker_of_another_recipe_is_told_what_differs() {
    let house = house(|r| r);
    let mut loader = house.loader(0, 1);
    let begin = Instant::now();
    loop {
        let asked = Instant::now();
        let e = loader.next(Some(asked + Duration::from_millis(300))).err().unwrap();
        assert!(e.status == Status::Timeout && asked.elapsed() < Duration::from_secs(20), "{e}");
        // Before that it is still registering, or its row is still being made.
        if e.message.contains("no worker is attached") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{e}");
    }
    let mut nowhere = house.loader_with(0, 1, |_, g| {
        g.endpoints = Some(laneway::exchange::endpoints::Endpoints::in_dir(&house.room.dir.join("nobody")));
        g.connect = Duration::from_millis(200);
    });
    let e = nowhere.next(None).err().unwrap();
    assert!(e.status == Status::NotFound && e.message.contains("[generate]") && e.message.contains("nobody"), "{e}");
    let mut rows = Rows::open(house.recipe(), house.options(), &[]).unwrap();
    let other = Recipe::parse(&RECIPE.replace("seed = 7", "seed = 8"), Some(house.dir.path())).unwrap();
    let run = Loader::open(other, house.options(), &[]).unwrap().save().meta;
    let e = rows.follow(&run, 0).unwrap_err();
    assert!(e.status == Status::Refused && e.message.contains("seed is 7 now and was 8"), "{e}");
}
