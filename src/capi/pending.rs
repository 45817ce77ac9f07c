//! Stands in for rooms that are still being written.
#![expect(dead_code, unused_variables, reason = "replaced by crate::exchange and crate::medium")]

use crate::base::{Error, Layout, Result, Status};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::medium::{Attach, MediumChoice};
use crate::os::clock::Nanos;

fn no<T>() -> Result<T> {
    Err(Error::new(Status::Unsupported, "not there yet"))
}

pub struct Endpoints {
    pub frontend: String,
    pub backend: String,
    pub control: String,
    pub control_pub: String,
}
impl Endpoints {
    pub fn default() -> Result<Endpoints> {
        no()
    }
}
pub enum StudentRole {
    Client,
    Dataset,
}
pub struct Model {
    pub id: String,
    pub config: Option<String>,
}
pub struct StudentOptions {
    pub endpoints: Endpoints,
    pub group: Option<String>,
    pub rank: u32,
    pub role: StudentRole,
    pub data_worker: u32,
    pub data_workers: u32,
    pub slot_count: u32,
    pub prefetch: u32,
    pub max_workers: u32,
    pub max_batch: u32,
    pub max_attempts: u32,
    pub arrival_order: bool,
    pub seed: u64,
    pub layout: Layout,
    pub medium: MediumChoice,
    pub embedded_broker: bool,
    pub spin_us: u32,
}
pub struct Stats;
impl Stats {
    pub fn to_json(&self) -> String {
        "{}".into()
    }
}
pub struct Student;
impl Student {
    pub fn open(options: StudentOptions, deadline: Nanos) -> Result<Student> {
        no()
    }
    pub fn set_model(&self, model: &Model, deadline: Nanos) -> Result<u64> {
        no()
    }
    pub fn next(&self, max: usize, out: &mut Vec<Sample>, deadline: Nanos) -> Result<()> {
        no()
    }
    pub fn retain(&self, slot: u32, serial: u64) -> Result<()> {
        no()
    }
    pub fn release(&self, refs: &[(u32, u64)]) -> Result<()> {
        no()
    }
    pub fn generation(&self) -> u64 {
        0
    }
    pub fn lane(&self) -> u64 {
        0
    }
    pub fn stats(&self) -> Stats {
        Stats
    }
    pub fn fd(&self) -> Result<RawFd> {
        no()
    }
    pub fn cancel(&self) {}
    pub fn cursor(&self) -> u64 {
        0
    }
    pub fn close(&self) {}
}
pub struct Sample {
    pub slot: u32,
    pub serial: u64,
    pub lane: u64,
    pub step: u64,
    pub seed: u64,
    pub generation: u64,
    pub position: u64,
    pub data: *const u8,
    pub len: usize,
    pub copied: bool,
}
pub struct WorkerOptions {
    pub endpoints: Endpoints,
    pub worker_id: Option<i64>,
    pub layout: Option<Layout>,
    pub slot_size: u64,
    pub batch_size: u32,
    pub attach: Vec<Box<dyn Attach>>,
    pub spin_us: u32,
}
pub struct Worker;
impl Worker {
    pub fn open(options: WorkerOptions, deadline: Nanos) -> Result<Worker> {
        no()
    }
    pub fn take(&self, max: u32, out: &mut Vec<Task>, deadline: Nanos) -> Result<()> {
        no()
    }
    pub fn commit(&self, done: &[(u64, usize)]) -> Result<u32> {
        no()
    }
    pub fn fail(&self, task: u64, text: &str) -> Result<()> {
        no()
    }
    pub fn generation(&self) -> u64 {
        0
    }
    pub fn model(&self) -> Option<Arc<Model>> {
        None
    }
    pub fn stats(&self) -> Stats {
        Stats
    }
    pub fn stop(&self) {}
    pub fn cancel(&self) {}
    pub fn fd(&self) -> Result<RawFd> {
        no()
    }
}
pub struct Task {
    pub id: u64,
    pub lane: u64,
    pub step: u64,
    pub seed: u64,
    pub generation: u64,
    pub attempt: u32,
    pub model: Arc<Model>,
    pub layout: Arc<Layout>,
    pub data: *mut u8,
    pub capacity: usize,
}
pub struct BrokerOptions {
    pub endpoints: Endpoints,
    pub exit_when_idle: Option<Duration>,
}
pub struct Broker;
pub struct Stopper;
impl Stopper {
    pub fn stop(&self) {}
}
impl Broker {
    pub fn bind(options: BrokerOptions) -> Result<Broker> {
        no()
    }
    pub fn run(&self) -> Result<()> {
        no()
    }
    pub fn start(&self) -> Result<()> {
        no()
    }
    pub fn stopper(&self) -> Stopper {
        Stopper
    }
    pub fn stats(&self) -> Stats {
        Stats
    }
}
