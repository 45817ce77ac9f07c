//! The smallest distillation, in Rust: a teacher that knows a linear function makes samples, and a student learns it from them.
//!
//! ```sh
//! LANEWAY_BIN=target/release/laneway cargo run --release --example distill_min
//! ```
//!
//! The worker runs on a thread here to keep the example in one file; as a program of its own it would be the same code, and several would share the
//! work. examples/c, examples/cpp and examples/python hold the same program under the same name.

use laneway::base::{DType, Layout, Result, Status, TensorSpec};
use laneway::exchange::endpoints::Endpoints;
use laneway::exchange::message::{Model, StudentRole};
use laneway::exchange::student::{Numbering, Student, StudentOptions};
use laneway::exchange::worker::{Worker, WorkerOptions};
use laneway::os::clock;
use std::sync::Arc;
use std::time::Duration;

const DIM: usize = 8;
const STEPS: usize = 2000;

fn main() -> Result<()> {
    let spec = |name: &str, shape: &[u64]| TensorSpec::new(name, shape, DType::Float32);
    let layout = Arc::new(Layout::new(vec![spec("x", &[DIM as u64]), spec("y", &[])])?);
    let soon = || clock::after(Duration::from_secs(10));

    let leader = Numbering { rank: 0, role: StudentRole::Client, data_worker: 0, data_workers: 0 };
    let mut options = StudentOptions::new(Endpoints::default()?, leader, layout.clone());
    (options.prefetch, options.embedded_broker) = (6, true);
    let student = Student::open(options, soon())?;
    student.set_model(Model { id: "linear".into(), config: None, run: None }, soon())?;

    let mut options = WorkerOptions::new(Endpoints::default()?);
    (options.layout, options.batch_size) = (Some((*layout).clone()), 4);
    let worker = Worker::open(options, soon())?;

    let loss = std::thread::scope(|scope| {
        let thread = scope.spawn(|| teach(&worker));
        let loss = learn(&student, &layout);
        worker.stop();
        thread.join().expect("the worker's thread")?;
        loss
    })?;
    assert!(loss < 1e-4, "the student did not learn");
    Ok(())
}

/// The next of a sequence of numbers in [-1, 1), the same for the same seed.
fn draw(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    (laneway::base::mix(*state) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// The teacher: y = 1·x₀ + 2·x₁ + … The task's seed decides x, so any worker makes the same sample for the same task.
fn teach(worker: &Worker) -> Result<()> {
    let mut tasks = Vec::new();
    loop {
        match worker.take(4, &mut tasks, clock::NEVER) {
            Err(e) if e.status == Status::Closed => return Ok(()),
            other => other?,
        }
        for task in &tasks {
            let mut state = task.seed;
            let x: [f32; DIM] = std::array::from_fn(|_| draw(&mut state));
            let y: f32 = x.iter().zip(1..).map(|(x, weight)| weight as f32 * x).sum();
            let y_at = task.layout.offset(1);
            // SAFETY: `data` has `capacity` bytes, those of the layout: 8 floats at 0 and one at `y_at`; while the task is open they are this
            // worker's alone. Tensors are aligned to 64 bytes.
            unsafe {
                task.data.cast::<[f32; DIM]>().write(x);
                task.data.add(y_at).cast::<f32>().write(y);
            }
        }
        let done: Vec<_> = tasks.drain(..).map(|task| (task.id, task.capacity)).collect();
        worker.commit(&done)?;
    }
}

/// The student: stochastic gradient descent; gives its last loss.
fn learn(student: &Student, layout: &Layout) -> Result<f32> {
    let (mut weights, mut loss, mut samples) = ([0f32; DIM], 0f32, Vec::new());
    for step in 1..=STEPS {
        student.next(1, &mut samples, clock::after(Duration::from_secs(10)))?;
        let sample = samples.pop().expect("`next` gives at least one");
        // SAFETY: as above; the sample is readable until it is released.
        let (x, y) = unsafe { (*sample.data.cast::<[f32; DIM]>(), *sample.data.add(layout.offset(1)).cast::<f32>()) };
        let error: f32 = weights.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() - y;
        weights.iter_mut().zip(x).for_each(|(w, x)| *w -= 0.1 * error * x);
        student.release(&[(sample.slot, sample.serial)])?;
        loss = 0.99 * loss + 0.01 * error * error;
        if step % 500 == 0 {
            println!("step {step:4}  loss {loss:.6}");
        }
    }
    Ok(loss)
}
