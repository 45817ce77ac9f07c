//! Where the peers of a rank stand, and who is told when it is moved.
//!
//! A ring holds one *run* of batches, from the place where the pipeline was last put. A peer that wants to stand where the run is, or where it will be
//! before anybody has to take another batch, takes its seat there. One that wants to stand elsewhere begins another run in a new ring; the peers of the
//! old one are waited for: nothing of the new one is written over until each has come, left, or died.
//!
//! Peers that come back after a failure, or to the server in the place of another, stand a few batches apart, as they did before, and come in any order, some
//! of them by `next`, some by loading or seeking a place that was within reach until then. None of that is a move: a run that is begun so goes on with the
//! one before, reaches back as far as a ring does, and may be begun anew a little earlier by a slower peer. What else puts the pipeline elsewhere is a move. Every
//! other peer of the rank is told of it: by its ring at once, or as it comes back.

use super::feed::Feed;
use super::message::{At, FromServer, pack, unpack};
use super::server::Connection;
use crate::base::{Error, Result, Status};
use crate::loader::Loader;
use crate::pipeline::Checkpoint;
use crate::segment::ring::End;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Step and microbatch of a batch.
type Place = (u64, u64);

/// The most batches that a peer that comes back may be ahead of the run.
const AHEAD: u64 = 1 << 12;

/// Where a peer of the rank is.
pub enum Sits {
    /// In the ring of now.
    Here(u32),
    /// In an older one, from which the run goes on.
    Behind,
    /// In an older one; the rank was moved since, as this says.
    Left(Error),
}

/// How the run of now came to be.
#[derive(Default)]
pub struct Begun {
    /// Where.
    pub at: Place,
    /// By a peer that came back, or when no other was there: it may be begun anew a little earlier, for one that comes from the same place and was slower.
    by_chance: bool,
    /// What is said to those who did not see the last move of the rank.
    moved: Option<Error>,
}

/// Who puts the pipeline elsewhere, and why.
struct Restart<'a> {
    by: &'a Connection,
    /// Peers of the rank, as it says.
    peers: u32,
    why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Nobody else is there.
    Start,
    /// The run goes on.
    Back,
    /// It is wanted elsewhere.
    Move,
}

impl Feed {
    pub(super) fn leave(&mut self, id: u64, died: bool) {
        let Some(sits) = self.peers.remove(&id) else { return };
        let mut died = died;
        if let Sits::Here(seat) = sits {
            // Whoever leaves says so in its seat first, even if its process ends right then.
            died = !self.publisher.has_left(seat);
            self.publisher.vacate(seat);
        }
        let count = if died { &self.numbers.deaths } else { &self.numbers.left };
        count.fetch_add(1, Ordering::Relaxed);
        self.awaited.remove(&id);
        self.await_peers();
    }

    /// Seats a peer. The answer, and what goes with it beside the ring.
    pub(super) fn join(
        &mut self,
        connection: &Arc<Connection>,
        peers: u32,
        at: At,
        state: Option<OwnedFd>,
    ) -> Result<(FromServer, Option<Vec<OwnedFd>>)> {
        let others = self.peers.keys().any(|id| *id != connection.id);
        let restart = |why| Restart { by: connection, peers, why };
        let mut own_state = false;
        let number = match at {
            // What was made before a failure is for all who are still here, and the failure after it.
            At::Start if self.whole && (!self.failed || others) && self.publisher.oldest() == 0 => 0,
            At::Start if others => {
                let step = self.loader.step();
                let hint = "say how many peers a rank has (peers) so that its beginning is kept for all, or load the state of the others";
                return Err(Error::new(
                    Status::Refused,
                    format!("the other peers of rank {} are at step {step}, and its beginning is gone; {hint}", self.rank),
                ));
            }
            At::Start => {
                let mut fresh = self.shared.assemble(self.rank, &connection.shape()?, &self.inbox.interrupt)?;
                self.restart(restart(Why::Start), |loader| {
                    fresh.count_on(loader);
                    *loader = fresh;
                    Ok(())
                })?
            }
            At::Step(step) => match self.stand_at((step, 0)) {
                Some(number) => number,
                None => self.restart(restart(self.why_elsewhere((step, 0))), |loader| loader.seek(step))?,
            },
            At::State { bytes, again } => {
                let fd = state.ok_or_else(|| Error::invalid("a join with a state, and none came along"))?;
                let state = Checkpoint::from_bytes(&unpack(&fd, bytes, "the state")?)?;
                self.loader.fits(&state)?;
                own_state = true;
                let place = (state.meta.step, state.meta.within.map_or(0, |w| w.microbatch));
                if again {
                    self.has_seen_all_moves(connection.id, place)?;
                }
                let same = state.meta.mixture == self.loader.mixture() && state.meta.models == self.loader.models();
                let ahead = || if again { self.ahead(place, AHEAD) } else { self.soon(place) };
                match self.stand_at(place).or_else(ahead).filter(|_| same) {
                    Some(number) => number,
                    None => {
                        let why = match (again, same) {
                            (true, _) => Why::Back,
                            (false, true) => self.why_elsewhere(place),
                            (false, false) => Why::Move,
                        };
                        self.restart(restart(why), |loader| loader.load(&state))?
                    }
                }
            }
        };
        let seat = self.seat(connection, number)?;
        if own_state {
            return Ok((FromServer::Joined { seat, number, bytes: 0 }, None));
        }
        let stand = self.stands.iter().find(|s| s.number == number).expect("looked up above, or the beginning of a run");
        let state = self.loader.state_at(stand.step, stand.microbatch, &stand.marks).to_bytes();
        let ring = self.publisher.fd().try_clone_to_owned().map_err(|e| Error::io("dup", e))?;
        Ok((FromServer::Joined { seat, number, bytes: state.len() as u64 }, Some(vec![ring, pack(&state)?])))
    }

    fn seat(&mut self, connection: &Arc<Connection>, number: u64) -> Result<u32> {
        let seat = match self.peers.get(&connection.id) {
            Some(Sits::Here(seat)) => {
                self.publisher.reseat(*seat, number);
                *seat
            }
            _ => {
                let full = || Error::new(Status::Refused, format!("rank {} has 64 peers already", self.rank));
                self.publisher.seat(number).ok_or_else(full)?
            }
        };
        let known = self.peers.insert(connection.id, Sits::Here(seat)).is_some();
        if !self.awaited.remove(&connection.id) && !known {
            self.expected = self.expected.saturating_sub(1);
        }
        self.numbers.joined.fetch_add(1, Ordering::Relaxed);
        self.await_peers();
        Ok(seat)
    }

    /// The batch that comes next at that place of the run, if all from there on are still there.
    fn stand_at(&self, place: Place) -> Option<u64> {
        self.stand_of_any(place).filter(|_| !self.failed)
    }

    fn stand_of_any(&self, place: Place) -> Option<u64> {
        let oldest = self.publisher.oldest();
        self.stands.iter().find(|s| (s.step, s.microbatch) == place && s.number >= oldest).map(|s| s.number)
    }

    /// The number of the batch at a place that the run comes to within so many batches.
    fn ahead(&self, place: Place, most: u64) -> Option<u64> {
        // Where nobody sits, nobody is disturbed, and what lies before that place need not be made: unless one may come that has not even begun, for whom the
        // others cannot have gone far.
        let begins = || self.whole && self.expected > 1 && self.batches_between(self.begun.at, place, self.reach()).is_some();
        let goes_on = !self.failed && (self.publisher.seated() > 0 || begins());
        let away = self.batches_between(self.loader.place(), place, most).filter(|_| goes_on)?;
        Some(self.publisher.head() + away)
    }

    /// As [`Feed::ahead`], of a batch that will be made though nobody takes another: that it does not lie there yet is a matter of moments, of which nothing may depend.
    fn soon(&self, place: Place) -> Option<u64> {
        let room = self.reach().saturating_sub(self.publisher.ready());
        self.ahead(place, room).filter(|_| !self.over)
    }

    /// Whether the start of that step is not there yet, and will be soon.
    pub(super) fn comes_to(&self, step: u64) -> bool {
        self.stand_at((step, 0)).is_none() && self.soon((step, 0)).is_some()
    }

    /// How many batches the peers of a ring may be apart.
    fn reach(&self) -> u64 {
        self.shared.options.slots
    }

    /// How many batches lie between two places; `None`: more than `most`, or `to` comes before `from`.
    fn batches_between(&self, from: Place, to: Place, most: u64) -> Option<u64> {
        let mut at = from;
        (0..=most).take_while(|_| from <= to).find(|_| {
            let here = at == to;
            let count = self.loader.rank().microbatches(self.loader.schedule().rows_at(at.0));
            at = if at.1 + 1 < count { (at.0, at.1 + 1) } else { (at.0.saturating_add(1), 0) };
            here
        })
    }

    /// Whether the run could have begun at that place: a little before it did.
    fn reaches_back_to(&self, place: Place) -> bool {
        self.batches_between(place, self.begun.at, self.reach()).is_some()
    }

    /// What it is that puts the pipeline to a place where the run is not, nor comes to by itself.
    fn why_elsewhere(&self, place: Place) -> Why {
        // A run that has failed is begun again where it was; how far it was is for each peer to learn by the failure.
        let of_the_failed = self.failed && self.stand_of_any(place).is_some();
        let of_a_slower = self.begun.by_chance && self.publisher.oldest() == 0 && self.reaches_back_to(place);
        if of_the_failed || of_a_slower { Why::Back } else { Why::Move }
    }

    /// Whether a peer that comes back knows where the rank was put. If not, that is its answer, now as before, until it says itself where it wants to be.
    fn has_seen_all_moves(&self, id: u64, place: Place) -> Result<()> {
        match (self.peers.get(&id), &self.begun.moved) {
            (Some(Sits::Left(moved)), _) => Err(moved.clone()),
            // It comes from another server, where it may have stood at that place, or within reach of it.
            (None, Some(moved)) if !self.is_within_reach(place) => Err(moved.clone()),
            _ => Ok(()),
        }
    }

    fn is_within_reach(&self, place: Place) -> bool {
        let next = self.loader.place();
        (self.begun.at..=next).contains(&place) || self.batches_between(next, place, self.reach()).is_some() || self.reaches_back_to(place)
    }

    /// Puts the pipeline elsewhere and begins another run there. Number 0 of it is what comes next. Nobody notices anything if it cannot be put there.
    fn restart(&mut self, asked: Restart<'_>, put: impl FnOnce(&mut Loader) -> Result<()>) -> Result<u64> {
        let Restart { by, peers, why } = asked;
        let fresh = self.layout.publisher()?;
        put(&mut self.loader)?;
        let mut old = std::mem::replace(&mut self.publisher, fresh);
        let said = Error::new(
            Status::Stale,
            format!(
                "rank {} of the node loader '{}' was moved to step {} by process {}; load the same state or seek the same step here, or make a new loader",
                self.rank,
                self.shared.options.name,
                self.loader.step(),
                by.pid
            ),
        );
        // Whoever has not looked yet is still to learn of a failure, as those who have; each asks again after that, and finds the new run, or is told of it.
        if !self.failed {
            old.end(if why == Why::Move { End::Replaced(&said) } else { End::Moved });
        }
        for (id, sits) in self.peers.iter_mut().filter(|(id, _)| **id != by.id) {
            self.awaited.insert(*id);
            match (why, &sits) {
                (Why::Move, _) => *sits = Sits::Left(said.clone()),
                (_, Sits::Left(_)) => {}
                _ => *sits = Sits::Behind,
            }
        }
        self.peers.entry(by.id).and_modify(|sits| *sits = Sits::Behind);
        let wanted = peers.max(self.shared.options.peers).max(1);
        // The one that asks is one of them.
        let newcomer = u32::from(!self.peers.contains_key(&by.id));
        self.expected = wanted.saturating_sub(1 + self.awaited.len() as u32) + newcomer;
        self.inbox.knock_at(self.publisher.ring());
        let moved = match why {
            Why::Start => None,
            Why::Back => self.begun.moved.take(),
            Why::Move => Some(said),
        };
        let by_chance = why == Why::Back || self.peers.keys().all(|id| *id == by.id);
        self.begun = Begun { at: self.loader.place(), by_chance, moved };
        self.whole = self.loader.place() == (0, 0);
        self.begin();
        tracing::info!("rank {}: a new run from step {}, asked for by process {}", self.rank, self.loader.step(), by.pid);
        Ok(0)
    }
}
