//! Every metric. `docs/metrics.md` is this table for people, and `tests/metrics.rs` compares the two.

use super::Noun;

/// What a number does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from 0 when the thing was opened.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Whose it is.
    pub noun: Noun,
    /// Its key in `counters`.
    pub key: &'static str,
    /// Its name in Prometheus' text; the unit is the last word, before `total`.
    pub name: &'static str,
    /// What it does.
    pub kind: Kind,
    /// What the number of the snapshot is multiplied by: 1e-9 for nanoseconds that are told as seconds.
    pub scale: f64,
    /// Where the snapshot has an object instead of a number: the label that its keys are values of.
    pub by: Option<&'static str>,
    /// What it means.
    pub help: &'static str,
}

const fn count(noun: Noun, key: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric { noun, key, name, kind: Kind::Counter, scale: 1.0, by: None, help }
}

const fn gauge(noun: Noun, key: &'static str, name: &'static str, help: &'static str) -> Metric {
    Metric { noun, key, name, kind: Kind::Gauge, scale: 1.0, by: None, help }
}

const NANOSECONDS: f64 = 1e-9;

const fn nanoseconds(metric: Metric) -> Metric {
    Metric { scale: NANOSECONDS, ..metric }
}

const fn by(label: &'static str, metric: Metric) -> Metric {
    Metric { by: Some(label), ..metric }
}

use Noun::{Broker, Loader, Node, Student, Worker};

/// All of them.
pub const METRICS: &[Metric] = &[
    count(Student, "delivered", "laneway_student_samples_total", "Samples delivered"),
    count(Student, "copied", "laneway_student_copied_samples_total", "Samples delivered as private copies, because no slot could be spared"),
    nanoseconds(count(Student, "waited_ns", "laneway_student_wait_seconds_total", "Time asleep, waiting for samples")),
    count(Student, "sleeps", "laneway_student_sleeps_total", "Times that the student slept"),
    gauge(Student, "in_flight", "laneway_student_tickets_in_flight", "Tickets opened and not delivered"),
    gauge(Student, "held", "laneway_student_held_samples", "Samples that the trainer holds as views"),
    gauge(Student, "releasing", "laneway_student_releasing_slots", "Slots given back whose reading a device has not finished"),
    gauge(Student, "slots", "laneway_student_slots", "Slots that may be used"),
    gauge(Student, "workers", "laneway_student_workers", "Workers attached"),
    count(
        Student,
        "failed_attempts",
        "laneway_student_failed_attempts_total",
        "Attempts that failed: a raise, a wrong size, a value that is not allowed",
    ),
    count(Student, "failed_tickets", "laneway_student_failed_tickets_total", "Tickets delivered as errors after all attempts"),
    count(Student, "fenced", "laneway_student_fenced_tickets_total", "Tickets made anew because the model was switched"),
    count(Student, "deaths", "laneway_student_worker_deaths_total", "Workers that died while attached"),
    count(Student, "left", "laneway_student_workers_left_total", "Workers that left by themselves"),
    count(Student, "reopened", "laneway_student_retried_tickets_total", "Tickets taken back from dead workers"),
    count(Student, "suspected", "laneway_student_suspected_tickets_total", "Tickets given to a second worker because the first was stopped or slow"),
    count(Student, "swept_slots", "laneway_student_swept_slots_total", "Slots taken back from dead workers"),
    nanoseconds(gauge(
        Student,
        "slowest_reclaim_ns",
        "laneway_student_slowest_reclaim_seconds",
        "Longest time from a death's first sign to the new claim",
    )),
    count(Student, "rings", "laneway_student_rings_total", "Workers woken"),
    gauge(Student, "generation", "laneway_student_generation", "The group's model generation"),
    gauge(Student, "cursor", "laneway_student_next_step", "The step that is delivered next"),
    count(Worker, "made", "laneway_worker_samples_total", "Samples made and delivered"),
    count(Worker, "lost", "laneway_worker_lost_samples_total", "Samples made in vain: another worker was first, or the model was switched"),
    count(Worker, "failed", "laneway_worker_failed_tasks_total", "Tasks given up"),
    count(Worker, "refused", "laneway_worker_refused_samples_total", "Samples that were not what the layout asks for; failed tasks, too"),
    gauge(Worker, "pending", "laneway_worker_pending_samples", "Samples committed that a device has not finished yet"),
    count(Worker, "batches", "laneway_worker_batches_total", "Commits"),
    nanoseconds(gauge(Worker, "batch_ns", "laneway_worker_last_batch_seconds", "Time of the last batch, from claim to commit")),
    nanoseconds(count(Worker, "waited_ns", "laneway_worker_wait_seconds_total", "Time asleep, waiting for tasks")),
    count(Worker, "sleeps", "laneway_worker_sleeps_total", "Times that the worker slept"),
    count(Worker, "device_opens", "laneway_worker_device_opens_total", "Handles of students' device memory opened, by all workers of the process"),
    count(Worker, "device_closes", "laneway_worker_device_closes_total", "Handles of students' device memory closed, by all workers of the process"),
    gauge(Worker, "students", "laneway_worker_students", "Students attached"),
    gauge(Worker, "generation", "laneway_worker_generation", "Generation of the model in use"),
    count(Loader, "batches", "laneway_loader_batches_total", "Batches delivered"),
    count(Loader, "rows", "laneway_loader_rows_total", "Rows delivered"),
    count(Loader, "tokens", "laneway_loader_tokens_total", "Tokens delivered, padding left out"),
    count(Loader, "padding", "laneway_loader_padding_tokens_total", "Positions delivered that hold no token"),
    nanoseconds(count(Loader, "waited_ns", "laneway_loader_wait_seconds_total", "Time that the trainer spent in calls for the next batch")),
    by("dataset", count(Loader, "dataset_tokens", "laneway_loader_dataset_tokens_total", "Tokens delivered, by dataset: the mixture as it came")),
    gauge(Loader, "step", "laneway_loader_next_step", "The step of the next batch"),
    gauge(Loader, "epoch", "laneway_loader_epoch", "Epoch of the dataset and lane that is behind all others"),
    gauge(Loader, "ready_rows", "laneway_loader_ready_rows", "Rows made and not delivered"),
    gauge(Loader, "documents", "laneway_loader_documents", "Documents packed since the loader was opened, moved or restored"),
    gauge(Loader, "truncated_tokens", "laneway_loader_truncated_tokens", "Tokens cut off long documents since then"),
    by(
        "reason",
        gauge(
            Loader,
            "left_out",
            "laneway_loader_left_out_documents",
            "Documents left out since then: empty, filtered, skipped (unreadable), dropped (too long)",
        ),
    ),
    gauge(Loader, "dropped_tokens", "laneway_loader_dropped_tokens", "Tokens of the dropped documents since then"),
    count(Loader, "bytes_read", "laneway_loader_read_bytes_total", "Bytes of the datasets' files that were read for documents"),
    gauge(Node, "connections", "laneway_node_connections", "Connections that are open: peers, and whoever asks"),
    count(Node, "turned_away", "laneway_node_turned_away_connections_total", "Connections of other users, and beyond 4096"),
    count(Node, "bytes_read", "laneway_node_read_bytes_total", "Bytes of the datasets' files that were read for documents"),
    count(Node, "batches", "laneway_node_batches_total", "Batches made"),
    count(Node, "rows", "laneway_node_rows_total", "Rows made"),
    count(Node, "tokens", "laneway_node_tokens_total", "Tokens in them, padding left out"),
    count(Node, "padding", "laneway_node_padding_tokens_total", "Positions in them that hold no token"),
    by("dataset", count(Node, "dataset_tokens", "laneway_node_dataset_tokens_total", "Tokens in them, by dataset: the mixture as it was made")),
    nanoseconds(count(Node, "making_ns", "laneway_node_making_seconds_total", "Time spent making batches, or waiting for threads that do")),
    nanoseconds(count(Node, "full_ns", "laneway_node_full_seconds_total", "Time without room for a batch: peers had not taken those that lie ready")),
    gauge(Node, "step", "laneway_node_next_step", "The step of the next batch to be made"),
    gauge(Node, "epoch", "laneway_node_epoch", "Epoch of the dataset and lane that is behind all others"),
    gauge(Node, "ready_rows", "laneway_node_ready_rows", "Rows made that are in no batch yet"),
    gauge(Node, "ready", "laneway_node_ready_batches", "Batches that lie ready for the slowest peer"),
    gauge(Node, "slots", "laneway_node_slots", "Slots that have memory"),
    gauge(Node, "slots_in_use", "laneway_node_slots_in_use", "Slots whose batch a peer has not taken, or still holds"),
    gauge(Node, "peers", "laneway_node_peers", "Peers that have a seat"),
    gauge(Node, "awaited", "laneway_node_awaited_peers", "Peers that have not come yet: what they read first is kept for them"),
    count(Node, "joined", "laneway_node_joined_peers_total", "Times that a peer took its place"),
    count(Node, "left", "laneway_node_left_peers_total", "Peers that left by themselves"),
    count(Node, "deaths", "laneway_node_peer_deaths_total", "Peers that died"),
    count(Node, "runs", "laneway_node_runs_total", "Runs begun: at the start, and each time that a peer wanted another place"),
    gauge(Node, "documents", "laneway_node_documents", "Documents packed since the run began"),
    gauge(Node, "truncated_tokens", "laneway_node_truncated_tokens", "Tokens cut off long documents since then"),
    by("reason", gauge(Node, "left_out", "laneway_node_left_out_documents", "Documents left out since then, by reason as for loaders")),
    gauge(Node, "dropped_tokens", "laneway_node_dropped_tokens", "Tokens of the dropped documents since then"),
    gauge(Broker, "uptime_s", "laneway_broker_uptime_seconds", "How long it has been running"),
    gauge(Broker, "students", "laneway_broker_students", "Registered students"),
    gauge(Broker, "workers", "laneway_broker_workers", "Registered workers"),
    gauge(Broker, "pairs", "laneway_broker_pairs", "Workers seated in a student's segment, over all students"),
    gauge(Broker, "models", "laneway_broker_models", "Models kept"),
    gauge(Broker, "model_bytes", "laneway_broker_model_bytes", "Bytes of these"),
    by("kind", count(Broker, "messages", "laneway_broker_messages_total", "Messages received, by kind")),
    count(Broker, "malformed", "laneway_broker_malformed_messages_total", "Messages that could not be read"),
    count(Broker, "refused", "laneway_broker_refused_messages_total", "Messages that were read and refused"),
    count(Broker, "strangers", "laneway_broker_strangers_total", "Attempts of other users to come through the door"),
];
