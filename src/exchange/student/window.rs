//! Tickets in flight. Everything here runs under the student's window lock; workers and the sweeper meet it only in atomic words.

use super::{Asked, Inner, Sample, Tickets, held, read_generation_last};
use crate::base::{Error, Result, Status, ticket_seed};
use crate::segment::cell::{CellState, CellWord, Ticket};
use crate::segment::region::Segment;
use crate::segment::slot::Content;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Durations remembered for the 95th percentile, and how many must be known before anybody is suspected of being slow.
const DURATIONS: usize = 64;
const KNOWN: u64 = 20;
/// Nobody is suspected of being slow before this, in nanoseconds.
const LEAST_SUSPECT: u64 = 1_000_000_000;
/// No suspicion.
pub const NEVER_SUSPECT: u64 = u64::MAX;

/// What a look at the cells gave.
pub enum Collected {
    /// Samples were appended.
    Some,
    /// Nothing yet: wait for that position, or for any.
    Wait {
        /// The position, if delivery is in order and a ticket is open.
        wanted: Option<u64>,
    },
}

#[derive(Clone, Copy, Default)]
struct Entry {
    ticket: Ticket,
    version: u64,
    done: bool,
}

struct Found {
    position: u64,
    slot: u32,
    content: Content,
}

pub struct Window {
    /// By cell index, for positions `oldest..opened`.
    entries: Box<[Entry]>,
    oldest: u64,
    opened: u64,
    in_flight: u32,
    next_step: u64,
    /// With [`Tickets::Asked`]: tickets that no cell has yet.
    asked: VecDeque<Asked>,
    /// Otherwise, where tickets carry inputs: those of the next ones.
    inputs: VecDeque<Arc<[u8]>>,
    /// The generation of all open tickets (of the last one delivered, with [`Tickets::Asked`]); 0: none was opened yet.
    generation: u64,
    /// Tickets opened since workers were last rung.
    unrung: u32,
    /// An error found behind samples that were delivered first.
    pending: Option<Error>,
    found: Vec<Found>,
    durations: [u64; DURATIONS],
    known: u64,
}

enum Gathered {
    Some,
    None,
    /// The generation was raised meanwhile; nothing was delivered.
    Raised,
}

impl Window {
    pub fn new(segment: &Segment) -> Window {
        let cells = segment.cells().len();
        Window {
            entries: vec![Entry::default(); cells].into(),
            oldest: 0,
            opened: 0,
            in_flight: 0,
            next_step: 0,
            asked: VecDeque::new(),
            inputs: VecDeque::new(),
            generation: 0,
            unrung: 0,
            pending: None,
            found: Vec::new(),
            durations: [0; DURATIONS],
            known: 0,
        }
    }

    /// Opens what is missing and delivers up to `max` samples that are there.
    pub fn collect(&mut self, inner: &Inner, max: usize, out: &mut Vec<Sample>) -> Result<Collected> {
        if let Some(error) = self.pending.take() {
            return Err(error);
        }
        loop {
            self.start(inner)?;
            self.refresh(inner);
            if self.generation == 0 {
                return Ok(Collected::Wait { wanted: None });
            }
            self.fill(inner, max.min(u32::MAX as usize) as u32)?;
            match self.gather(inner, max, out)? {
                Gathered::Raised => {}
                Gathered::Some => {
                    let target = self.fill(inner, 0)?;
                    // Batches of tickets per wake-up: a worker that sleeps is rung once a quarter of the window waits for it.
                    if self.unrung * 4 >= target.max(1) {
                        self.ring(inner);
                    }
                    inner.settle_event();
                    return Ok(Collected::Some);
                }
                Gathered::None => {
                    self.ring(inner);
                    inner.settle_event();
                    let wanted = (!inner.options.arrival_order && self.oldest < self.opened).then_some(self.oldest);
                    return Ok(Collected::Wait { wanted });
                }
            }
        }
    }

    fn ring(&mut self, inner: &Inner) {
        if self.unrung > 0 {
            inner.ring_workers(std::mem::take(&mut self.unrung));
        }
    }

    /// The first time: takes the lane and continues at its cursor.
    fn start(&mut self, inner: &Inner) -> Result<()> {
        let page = inner.page();
        if self.generation != 0 || page.generation() == 0 {
            return Ok(());
        }
        if inner.options.tickets == Tickets::Numbered {
            page.own_lane(inner.lane)?;
            inner.owns_lane.store(true, Ordering::Release);
            self.next_step = page.cursor(inner.lane);
        }
        self.generation = page.generation();
        Ok(())
    }

    /// If the generation was raised, opens every undelivered ticket anew for the new one.
    pub fn refresh(&mut self, inner: &Inner) {
        let now = inner.page().generation();
        if self.generation == 0 || now == self.generation || inner.options.tickets == Tickets::Asked {
            return;
        }
        self.generation = now;
        self.known = 0;
        inner.suspect_after.store(NEVER_SUSPECT, Ordering::Relaxed);
        for position in self.oldest..self.opened {
            let entry = self.entries[inner.segment.cell_index(position)];
            if !entry.done {
                self.open_at(inner, Ticket { generation: now, attempt: 0, ..entry.ticket }, None);
                inner.stats.fenced.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.ring(inner);
    }

    /// Opens tickets until `ask + prefetch` are in flight, or as many as there is room for; returns that number.
    fn fill(&mut self, inner: &Inner, ask: u32) -> Result<u32> {
        let room = inner.options.slot_count.saturating_sub(inner.held.count()).max(1);
        let numbered = inner.options.tickets == Tickets::Numbered;
        // What was asked for is wanted as soon as there is room.
        let ahead = if numbered { inner.options.prefetch } else { room };
        let target = ask.saturating_add(ahead).min(room);
        while self.in_flight < target && self.opened - self.oldest < self.entries.len() as u64 {
            let next = match (numbered, &inner.options.input) {
                (false, _) => self.asked.pop_front(),
                (true, None) => Some(self.numbered(inner, None)),
                (true, Some(_)) => self.inputs.pop_front().map(|input| self.numbered(inner, Some(input))),
            };
            let Some(Asked { lane, step, generation, input }) = next else { break };
            let seed = ticket_seed(inner.options.seed, lane, step);
            let ticket = Ticket { position: self.opened, lane, step, seed, generation, attempt: 0 };
            let word = self.open_at(inner, ticket, input.as_deref());
            if word.is_worn() {
                let message =
                    "this student's segment has used up its ticket versions: close it and open a new student, which continues at the cursor";
                return Err(Error::new(Status::Closed, message));
            }
            self.next_step += u64::from(numbered);
            self.opened += 1;
            self.in_flight += 1;
            inner.segment.hot().opened.0.store(self.opened, Ordering::Release);
        }
        Ok(target)
    }

    /// Opens (again) the ticket's cell, whatever is in it, and frees a sample that was made in vain.
    /// Its input stays unless there is another one.
    fn open_at(&mut self, inner: &Inner, ticket: Ticket, input: Option<&[u8]>) -> CellWord {
        let index = inner.segment.cell_index(ticket.position);
        let cell = &inner.segment.cells()[index];
        let withdrawn = cell.withdraw();
        discard(inner, index, withdrawn);
        inner.deaths.reset(index, withdrawn.version() + 1);
        if let Some(input) = input {
            inner.segment.write_input(index, input);
        }
        let word = cell.open(&ticket);
        self.entries[index] = Entry { ticket, version: word.version(), done: false };
        self.unrung += 1;
        word
    }

    fn gather(&mut self, inner: &Inner, max: usize, out: &mut Vec<Sample>) -> Result<Gathered> {
        self.found.clear();
        let mut position = self.oldest;
        while position < self.opened && self.found.len() < max {
            let index = inner.segment.cell_index(position);
            let entry = self.entries[index];
            if !entry.done {
                let word = inner.segment.cells()[index].word();
                let full = word.state() == CellState::Full && word.version() == entry.version;
                let failure = if full { self.look(inner, position, word) } else { inner.exhausted(index, word, entry.ticket.attempt) };
                match failure {
                    None if full => {}
                    None if inner.options.arrival_order => {}
                    None => break,
                    // Samples in front of it are delivered first; it is found again then.
                    Some(_) if !self.found.is_empty() => break,
                    Some(text) => {
                        self.fail(inner, position, &text)?;
                        continue;
                    }
                }
            }
            position += 1;
        }
        if self.found.is_empty() {
            return Ok(Gathered::None);
        }
        // The last look before delivery: what was raised until here is honoured.
        if inner.options.tickets == Tickets::Numbered && read_generation_last(inner.page()) != self.generation {
            for found in std::mem::take(&mut self.found) {
                inner.segment.cell(found.position).withdraw();
                inner.segment.slots()[found.slot as usize].let_go();
            }
            return Ok(Gathered::Raised);
        }
        self.deliver(inner, out)
    }

    /// A FULL cell: its slot becomes the student's and goes to `found`, or the text of what is wrong with it.
    fn look(&mut self, inner: &Inner, position: u64, word: CellWord) -> Option<String> {
        let slot = word.slot();
        let Some(meta) = inner.segment.slots().get(slot as usize) else {
            return Some(format!("seat {} named slot {slot}, which does not exist", word.seat()));
        };
        let content = meta.content();
        let length = content.length;
        if content.failed {
            return Some(inner.segment.read_text(slot, (length as usize).min(crate::segment::layout::TEXT_BYTES)));
        }
        if length == 0 || length > inner.segment.header().sample_bytes {
            return Some(format!("the worker published {length} bytes; a sample has {}", inner.segment.header().sample_bytes));
        }
        if !meta.read() {
            return Some(format!("slot {slot} is {:?}, not ready, although its cell is full", meta.word().state()));
        }
        let index = inner.segment.cell_index(position);
        let claimed_at = inner.segment.cells()[index].claimed_at() as i64;
        if let Some(took) = inner.deaths.reclaimed_in(index, word.version(), claimed_at) {
            inner.stats.slowest_reclaim_ns.fetch_max(took, Ordering::Relaxed);
        }
        self.found.push(Found { position, slot, content });
        None
    }

    /// An attempt failed: opens the ticket again, or gives it up with an error.
    fn fail(&mut self, inner: &Inner, position: u64, text: &str) -> Result<()> {
        let index = inner.segment.cell_index(position);
        let entry = self.entries[index];
        let seen = inner.segment.cells()[index].withdraw();
        discard(inner, index, seen);
        let deaths = inner.deaths.count(index, entry.version);
        let raised = u64::from(seen.state() == CellState::Full);
        let attempts = entry.ticket.attempt + deaths + raised;
        inner.stats.failed_attempts.fetch_add(1, Ordering::Relaxed);
        let Ticket { lane, step, .. } = entry.ticket;
        tracing::warn!("ticket (lane {lane}, step {step}), attempt {attempts} of {}, failed: {text}", inner.options.max_attempts);
        if attempts < u64::from(inner.options.max_attempts) {
            self.open_at(inner, Ticket { attempt: attempts, ..entry.ticket }, None);
            self.ring(inner);
            return Ok(());
        }
        inner.stats.failed_tickets.fetch_add(1, Ordering::Relaxed);
        self.finish(inner, position);
        let plural = if attempts == 1 { "" } else { "s" };
        Err(Error::new(Status::TaskFailed, format!("ticket (lane {lane}, step {step}) failed after {attempts} attempt{plural}: {text}")))
    }

    /// The ticket is done with, delivered or not.
    fn finish(&mut self, inner: &Inner, position: u64) {
        self.entries[inner.segment.cell_index(position)].done = true;
        self.in_flight -= 1;
        while self.oldest < self.opened && self.entries[inner.segment.cell_index(self.oldest)].done {
            self.oldest += 1;
        }
        inner.segment.hot().oldest.0.store(self.oldest, Ordering::Release);
        if inner.options.tickets == Tickets::Asked {
            return;
        }
        let cursor = if self.oldest < self.opened { self.entries[inner.segment.cell_index(self.oldest)].ticket.step } else { self.next_step };
        inner.page().set_cursor(inner.lane, cursor);
    }

    fn deliver(&mut self, inner: &Inner, out: &mut Vec<Sample>) -> Result<Gathered> {
        let found = std::mem::take(&mut self.found);
        let before = out.len();
        for Found { position, slot, content } in &found {
            let (position, slot) = (*position, *slot);
            let index = inner.segment.cell_index(position);
            let ticket = self.entries[index].ticket;
            // READING was set first, so the sweeper of a dead writer cannot take the slot for an orphan.
            inner.segment.cells()[index].withdraw();
            let len = content.length as usize;
            let brought = if content.beside { inner.medium.bring_up(slot, len) } else { Ok(()) };
            if let Err(e) = brought {
                inner.segment.slots()[slot as usize].let_go();
                self.pending_failure(inner, position, &ticket, e, out.len() > before)?;
                continue;
            }
            let shapes = inner.copy_shapes(slot);
            // A window of one ticket must remain beside the views.
            let view = inner.medium.slot(slot).filter(|_| inner.held.count() + 1 < inner.options.slot_count);
            let (name, serial, data) = match view {
                Some(data) => (slot, inner.held.hold(slot, shapes), data.as_ptr().cast_const()),
                None => {
                    let copy = inner.medium.copy(slot, len);
                    inner.segment.slots()[slot as usize].let_go();
                    let copy = match copy {
                        Ok(copy) => copy,
                        Err(e) => {
                            self.pending_failure(inner, position, &ticket, e, out.len() > before)?;
                            continue;
                        }
                    };
                    inner.stats.copied.fetch_add(1, Ordering::Relaxed);
                    let data = copy.start().cast_const();
                    let (name, serial) = inner.held.hold_copy(copy, shapes);
                    (name, serial, data)
                }
            };
            self.finish(inner, position);
            if ticket.generation != self.generation {
                // Only where tickets are asked for: another model, which may take another time.
                (self.generation, self.known) = (ticket.generation, 0);
                inner.suspect_after.store(NEVER_SUSPECT, Ordering::Relaxed);
            }
            self.note_duration(inner, content.made_in);
            inner.stats.delivered.fetch_add(1, Ordering::Relaxed);
            let Ticket { lane, step, seed, generation, .. } = ticket;
            let (copied, place) = (name & held::COPY != 0, inner.medium.place());
            out.push(Sample { slot: name, serial, lane, step, seed, generation, position, data, len, copied, place });
        }
        self.found = found;
        self.found.clear();
        Ok(if out.len() > before { Gathered::Some } else { Gathered::None })
    }

    /// A medium that could not be read: the ticket ends with that error, behind what is delivered already.
    fn pending_failure(&mut self, inner: &Inner, position: u64, ticket: &Ticket, error: Error, later: bool) -> Result<()> {
        self.finish(inner, position);
        inner.stats.failed_tickets.fetch_add(1, Ordering::Relaxed);
        let error = error.within(format!("ticket (lane {}, step {}) failed after 1 attempt: reading the medium", ticket.lane, ticket.step));
        let error = Error::new(Status::TaskFailed, error.message);
        if later {
            self.pending.get_or_insert(error);
            return Ok(());
        }
        Err(error)
    }

    /// Remembers how long a sample took, for suspicion: more than `max(1 s, 4 × 95th percentile)` is slow.
    fn note_duration(&mut self, inner: &Inner, nanos: u64) {
        self.durations[(self.known % DURATIONS as u64) as usize] = nanos;
        self.known += 1;
        if self.known == KNOWN || self.known > KNOWN && self.known.is_multiple_of(16) {
            let n = (self.known as usize).min(DURATIONS);
            let mut sorted = self.durations;
            sorted[..n].sort_unstable();
            let p95 = sorted[(n * 95 / 100).min(n - 1)];
            inner.suspect_after.store(p95.saturating_mul(4).max(LEAST_SUSPECT), Ordering::Relaxed);
        }
    }

    /// Takes every undelivered ticket back.
    pub fn withdraw_all(&mut self, inner: &Inner) {
        for position in self.oldest..self.opened {
            let index = inner.segment.cell_index(position);
            if !self.entries[index].done {
                discard(inner, index, inner.segment.cells()[index].withdraw());
                self.entries[index].done = true;
            }
        }
        self.in_flight = 0;
        self.oldest = self.opened;
        inner.segment.hot().oldest.0.store(self.oldest, Ordering::Release);
    }

    /// See `Student::ask`.
    pub fn ask(&mut self, inner: &Inner, tickets: &[Asked]) -> Result<()> {
        self.asked.extend(tickets.iter().cloned());
        self.start(inner)?;
        if self.generation != 0 {
            self.fill(inner, 0)?;
            self.ring(inner);
        }
        Ok(())
    }

    /// See `Student::give`.
    pub fn give(&mut self, inputs: &[Arc<[u8]>]) {
        self.inputs.extend(inputs.iter().cloned());
    }

    fn numbered(&self, inner: &Inner, input: Option<Arc<[u8]>>) -> Asked {
        Asked { lane: inner.lane, step: self.next_step, generation: self.generation, input }
    }

    /// See `Student::forget`.
    pub fn forget(&mut self, inner: &Inner) {
        self.asked.clear();
        self.withdraw_all(inner);
        self.pending = None;
    }

    /// See `Student::rewind`.
    pub fn rewind(&mut self, inner: &Inner, step: u64) -> Result<()> {
        if inner.options.tickets == Tickets::Asked {
            return Err(Error::invalid("this student opens the tickets that it is asked for: there is no cursor to rewind"));
        }
        let cursor = inner.page().cursor(inner.lane);
        if step > cursor {
            return Err(Error::invalid(format!("step={step}: the lane's cursor is {cursor}, and rewinding goes back only")));
        }
        self.start(inner)?;
        self.withdraw_all(inner);
        self.pending = None;
        self.inputs.clear();
        self.next_step = step;
        inner.page().set_cursor(inner.lane, step);
        Ok(())
    }
}

/// Frees the slot of a sample that was published in the word just withdrawn and is not wanted.
fn discard(inner: &Inner, index: usize, withdrawn: CellWord) {
    if withdrawn.state() != CellState::Full {
        return;
    }
    if let Some(slot) = inner.segment.slots().get(withdrawn.slot() as usize) {
        slot.discard(index as u32, withdrawn.version());
    }
}

impl Inner {
    /// What is wrong with a cell whose workers died as often as allowed. It stays CLAIMED by the last of them until it is delivered as an error.
    pub(super) fn exhausted(&self, index: usize, word: CellWord, attempt: u64) -> Option<String> {
        let deaths = self.deaths.count(index, word.version());
        let given_up = word.state() == CellState::Claimed && deaths > 0 && attempt + deaths >= u64::from(self.options.max_attempts);
        given_up.then(|| "the worker died while making it".to_owned())
    }
}
