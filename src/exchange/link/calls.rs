//! Questions that wait for the broker's answer: sent again after a restart, until their deadline.

use crate::base::{Error, Result, Status};
use crate::exchange::message::Model;
use crate::exchange::wire::{Empty, GetModel, Kind, MAX_MODEL, MAX_PIECE, Message, ModelPiece, SetModel, SetModelOk};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How long to wait before asking again what the broker does not know yet.
const AGAIN: Duration = Duration::from_millis(50);

/// How long an answer may take before it counts as lost.
const LOST: Duration = Duration::from_secs(2);

/// A question.
pub enum Ask {
    /// Piece after piece of the model's blob.
    SetModel {
        /// `offset` is where the next piece begins.
        next: SetModel,
        /// Id, then configuration, then run.
        blob: Arc<Vec<u8>>,
    },
    /// Piece after piece.
    GetModel {
        /// `offset` is where the next piece begins.
        next: GetModel,
        /// What came before.
        got: Vec<u8>,
    },
    /// The statistics.
    Stats,
}

/// What it ends with.
#[derive(Debug)]
pub enum Answer {
    /// SET_MODEL.
    Done,
    /// GET_MODEL.
    Model(Arc<Model>),
    /// STATS.
    Text(String),
}

impl Ask {
    /// SET_MODEL.
    pub fn set_model(group: &str, generation: u64, model: &Model) -> Ask {
        let mut blob = model.id.clone().into_bytes();
        [&model.config, &model.run].into_iter().flatten().for_each(|text| blob.extend_from_slice(text.as_bytes()));
        let bytes = |text: &Option<String>| text.as_ref().map(|t| t.len() as u64);
        let (config_bytes, run_bytes) = (bytes(&model.config), bytes(&model.run));
        let next = SetModel { group: group.into(), generation, id_bytes: model.id.len() as u64, config_bytes, run_bytes, offset: 0 };
        Ask::SetModel { next, blob: Arc::new(blob) }
    }

    /// GET_MODEL.
    pub fn get_model(group: &str, generation: u64) -> Ask {
        Ask::GetModel { next: GetModel { group: group.into(), generation, offset: 0 }, got: Vec::new() }
    }

    /// Asked at the control socket, not at the handle's own.
    pub fn is_for_control(&self) -> bool {
        matches!(self, Ask::SetModel { .. })
    }

    /// The generation that is set, if one is.
    pub fn sets(&self) -> Option<u64> {
        let Ask::SetModel { next, .. } = self else { return None };
        Some(next.generation)
    }

    /// The generation that is asked for, if one is.
    pub fn gets(&self) -> Option<u64> {
        let Ask::GetModel { next, .. } = self else { return None };
        Some(next.generation)
    }

    /// The group, generation and model that are known once this has ended so.
    pub fn learnt(&self, answer: &Answer) -> Option<(&str, u64, Arc<Model>)> {
        match (self, answer) {
            (Ask::GetModel { next, .. }, Answer::Model(model)) => Some((&next.group, next.generation, model.clone())),
            (Ask::SetModel { next, blob }, Answer::Done) => {
                let (id, rest) = blob.split_at(next.id_bytes as usize);
                let (config, run) = rest.split_at(next.config_bytes.unwrap_or(0) as usize);
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let model = Model { id: text(id), config: next.config_bytes.map(|_| text(config)), run: next.run_bytes.map(|_| text(run)) };
                Some((&next.group, next.generation, Arc::new(model)))
            }
            _ => None,
        }
    }

    fn restart(&mut self) {
        match self {
            Ask::SetModel { next, .. } => next.offset = 0,
            Ask::GetModel { next, got } => {
                next.offset = 0;
                got.clear();
            }
            Ask::Stats => {}
        }
    }
}

/// A question that waits.
pub struct Call {
    /// What is asked.
    pub ask: Ask,
    deadline: Instant,
    done: Option<SyncSender<Result<Answer>>>,
    outstanding: Option<(u64, Instant)>,
    again: Option<Instant>,
    /// Why the last attempt brought nothing.
    reason: Option<Error>,
}

impl Call {
    /// A new one. Without `done` nobody waits for the result.
    pub fn new(ask: Ask, deadline: Instant, done: Option<SyncSender<Result<Answer>>>) -> Call {
        Call { ask, deadline, done, outstanding: None, again: None, reason: None }
    }

    /// Whether this is its answer.
    pub fn is_answered_by(&self, correlation: u64) -> bool {
        self.outstanding.is_some_and(|(asked, _)| asked == correlation)
    }

    /// The connection was lost: to be asked from the start.
    pub fn reset(&mut self) {
        self.outstanding = None;
        self.again = None;
        self.ask.restart();
    }

    /// To be sent now.
    pub fn is_unsent(&self, now: Instant) -> bool {
        self.outstanding.is_none() && self.again.is_none_or(|at| at <= now)
    }

    /// The message to be sent now, if one is.
    pub fn due(&mut self, session: u64, correlation: u64, now: Instant) -> Option<Message> {
        if self.outstanding.is_some_and(|(_, sent)| now.duration_since(sent) >= LOST) {
            self.reset();
        }
        if !self.is_unsent(now) {
            return None;
        }
        Some(match &self.ask {
            Ask::SetModel { next, blob } => {
                let at = next.offset as usize;
                let piece = blob[at..blob.len().min(at + MAX_PIECE)].to_vec();
                Message { blob: Some(piece), ..Message::new(Kind::SetModel, session, correlation, next) }
            }
            Ask::GetModel { next, .. } => Message::new(Kind::GetModel, session, correlation, next),
            Ask::Stats => Message::new(Kind::Stats, session, correlation, &Empty {}),
        })
    }

    /// It was sent.
    pub fn sent(&mut self, correlation: u64, now: Instant) {
        self.again = None;
        self.outstanding = Some((correlation, now));
    }

    /// Its answer came: the result, unless there is more to be asked.
    pub fn answered(&mut self, message: Message, now: Instant) -> Option<Result<Answer>> {
        self.outstanding = None;
        match self.step(message) {
            Ok(answer) => answer.map(Ok),
            // The broker was restarted, or the leader has not told it yet.
            Err(e) if matches!(e.status, Status::Closed | Status::NotFound) => {
                self.ask.restart();
                self.again = Some(now + AGAIN);
                self.reason = Some(e);
                None
            }
            Err(e) => Some(Err(e)),
        }
    }

    fn step(&mut self, message: Message) -> Result<Option<Answer>> {
        match &mut self.ask {
            Ask::Stats => {
                message.expect::<serde_json::Value>(Kind::StatsOk)?;
                String::from_utf8(message.body).map(|t| Some(Answer::Text(t))).map_err(|_| corrupt("the statistics are not UTF-8"))
            }
            Ask::SetModel { next, blob } => {
                let have = message.expect::<SetModelOk>(Kind::SetModelOk)?.have;
                if have > blob.len() as u64 || (have <= next.offset && !blob.is_empty()) {
                    return Err(corrupt("the broker counts the model's bytes wrongly"));
                }
                next.offset = have;
                Ok((have == blob.len() as u64).then_some(Answer::Done))
            }
            Ask::GetModel { next, got } => {
                let ModelPiece { id_bytes, config_bytes, run_bytes } = message.expect(Kind::Model)?;
                let size = id_bytes.saturating_add(config_bytes.unwrap_or(0)).saturating_add(run_bytes.unwrap_or(0));
                let piece = message.blob.unwrap_or_default();
                let have = got.len() as u64 + piece.len() as u64;
                if size > MAX_MODEL as u64 || have > size || (piece.is_empty() && have < size) {
                    return Err(corrupt("the model's pieces do not fit together"));
                }
                got.extend_from_slice(&piece);
                next.offset = have;
                if have < size {
                    return Ok(None);
                }
                let mut config = got.split_off(id_bytes as usize);
                let run = config.split_off(config_bytes.unwrap_or(0) as usize);
                let text = |bytes| String::from_utf8(bytes).map_err(|_| corrupt("the model is not UTF-8"));
                let config = config_bytes.map(|_| text(config)).transpose()?;
                let run = run_bytes.map(|_| text(run)).transpose()?;
                Ok(Some(Answer::Model(Arc::new(Model { id: text(std::mem::take(got))?, config, run }))))
            }
        }
    }

    /// The deadline has passed: why nothing came.
    pub fn expired(&self, connected: bool, now: Instant) -> Option<Error> {
        if now < self.deadline {
            return None;
        }
        Some(match (&self.reason, connected) {
            // Of this handle nothing is closed: a broker that was restarted did not know the session.
            (Some(e), _) if e.status == Status::Closed => {
                Error::new(Status::Timeout, format!("the broker did not answer in time; last it said: {e}"))
            }
            (Some(e), _) => e.clone(),
            (None, true) => Error::new(Status::Timeout, "the broker did not answer in time"),
            (None, false) => Error::new(Status::Timeout, "not connected with a broker (it is being restarted, or has ended)"),
        })
    }

    /// When something is to be done about it.
    pub fn wakes_at(&self) -> Instant {
        let next = self.outstanding.map(|(_, sent)| sent + LOST).or(self.again);
        next.unwrap_or(self.deadline).min(self.deadline)
    }

    /// Tells whoever waits.
    pub fn finish(self, result: Result<Answer>) {
        match (self.done, result) {
            // Whoever waited may have given up.
            (Some(done), result) => drop(done.try_send(result)),
            (None, Err(e)) => tracing::warn!("the broker could not be told what models were set: {e}"),
            (None, Ok(_)) => {}
        }
    }
}

fn corrupt(why: &str) -> Error {
    Error::new(Status::Corrupt, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_does_not_know_the_session_yet_is_a_timeout_and_not_a_closed_handle() {
        let now = Instant::now();
        let mut call = Call::new(Ask::Stats, now + AGAIN, None);
        call.due(1, 7, now).unwrap();
        call.sent(7, now);
        let unknown = Error::new(Status::Closed, "this session is not known");
        assert!(call.answered(Message::failure(1, 7, &unknown), now).is_none(), "asked again");
        assert!(call.expired(true, now).is_none());
        let e = call.expired(true, now + AGAIN).unwrap();
        assert!(e.status == Status::Timeout && e.message.contains("session is not known"), "{e}");
    }
}
