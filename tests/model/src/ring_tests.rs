//! One server, two peers, two slots.

use super::ledger::Ledger;
use super::sync::Ordering;
use super::tests::{Payload, model};
use super::words::{ANY, FAILED, Found, Front};
use super::{SLOTS, TEXT_WORDS};
use loom::sync::Arc;
use loom::thread;

/// The words, and for each slot the number of the batch in it: loom says if it is read while it is written.
struct Ring {
    front: Front,
    slots: [Payload; SLOTS],
}

fn ring() -> Arc<Ring> {
    Arc::new(Ring { front: Front::unbound(), slots: std::array::from_fn(|_| Payload::new(0)) })
}

/// The server makes the next batch, if there is room.
fn make(ring: &Ring, ledger: &mut Ledger, ahead: u64) -> bool {
    let Ok(slot) = ledger.room(&ring.front, ahead) else { return false };
    let number = ledger.head();
    ledger.overwrite(slot);
    ring.slots[slot as usize].write(number);
    ledger.publish(&ring.front, slot);
    true
}

/// A peer takes batch `next`, if it is there, and reads it; its slot, which it still holds.
fn take(ring: &Ring, seat: u32, next: u64) -> Option<u32> {
    match ring.front.take(seat as usize, next) {
        Found::Batch(slot) => {
            assert_eq!(ring.slots[slot as usize].read(), next, "the batch of that number");
            Some(slot)
        }
        Found::Nothing => None,
        other => panic!("{other:?}"),
    }
}

/// A peer's life: a few looks, each batch read, held for a moment and read again. How many it took.
fn live(ring: &Ring, seat: u32, from: u64, looks: usize) -> u64 {
    let mut next = from;
    for _ in 0..looks {
        if let Some(slot) = take(ring, seat, next) {
            thread::yield_now();
            assert_eq!(ring.slots[slot as usize].read(), next, "what is held stays");
            ring.front.let_go(seat as usize, slot);
            next += 1;
        } else {
            thread::yield_now();
        }
    }
    next
}

/// Two peers read every batch in order and whole, while the server writes over what both have let go.
///
/// Caught: a `take` that says that a batch was taken before it holds its slot; an `is_free` that forgets the holds, or the cursors; a `let_go`, a cursor or a head
/// stored without Release, or loaded without Acquire; a `room` that gives a slot with a batch that the slower peer has not taken.
#[test]
fn no_batch_is_written_over_while_a_peer_needs_it() {
    model(2, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let seats = [0, 1].map(|_| ledger.seat(&ring.front, 0).unwrap());
        let peers = seats.map(|seat| {
            let ring = ring.clone();
            thread::spawn(move || live(&ring, seat, 0, 2))
        });
        for _ in 0..3 {
            if !make(&ring, &mut ledger, 2) {
                thread::yield_now();
            }
        }
        let taken = peers.map(|peer| peer.join().unwrap());
        // What is there is there for good, and nobody has lost a place.
        for (seat, next) in seats.into_iter().zip(taken) {
            assert!(ledger.head() - next <= 2, "never more ahead than was asked for");
            (next..ledger.head()).for_each(|n| assert!(take(&ring, seat, n).is_some(), "batch {n} is gone"));
        }
    });
}

/// A peer dies with a batch in hand; its seat is given to another, which starts at what is still there. The other peer notices nothing.
///
/// Caught: a `seat` that leaves the dead one's holds; a `vacate` that leaves it seated; an `oldest` that counts what was written over.
#[test]
fn a_dead_peers_seat_is_given_again_and_keeps_nobody() {
    model(2, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let (steady, dying) = (ledger.seat(&ring.front, 0).unwrap(), ledger.seat(&ring.front, 0).unwrap());
        assert!(make(&ring, &mut ledger, 1));
        let victim = {
            let ring = ring.clone();
            // It dies where it stands: holding, or not even that.
            thread::spawn(move || {
                take(&ring, dying, 0);
            })
        };
        let other = {
            let ring = ring.clone();
            thread::spawn(move || live(&ring, steady, 0, 3))
        };
        make(&ring, &mut ledger, 1);
        victim.join().unwrap();
        ledger.vacate(&ring.front, dying);
        make(&ring, &mut ledger, 1);
        let oldest = ledger.oldest(&ring.front);
        let again = ledger.seat(&ring.front, oldest).unwrap();
        assert_eq!(again, dying);
        assert_eq!(ring.front.seats[again as usize].holds.load(Ordering::Relaxed), 0, "what the dead one held is nobody's");
        let back = live(&ring, again, oldest, 2);
        make(&ring, &mut ledger, 1);
        let next = other.join().unwrap();
        for (seat, from) in [(steady, next), (again, back)] {
            for n in from..ledger.head() {
                let slot = take(&ring, seat, n).unwrap_or_else(|| panic!("batch {n} is gone"));
                ring.front.let_go(seat as usize, slot);
            }
        }
        assert_eq!(ledger.slots_in_use(&ring.front).0, 0, "all was taken and let go");
    });
}

/// A peer that is about to sleep sees the batch, or is rung.
///
/// Caught: either fence left out.
#[test]
fn a_batch_is_seen_before_sleep_or_rings() {
    model(3, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let seat = ledger.seat(&ring.front, 0).unwrap();
        let peer = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.front.doze(seat as usize);
                ring.front.is_ready(0)
            })
        };
        assert!(make(&ring, &mut ledger, 1));
        let rung = ring.front.must_ring(ledger.peers(&ring.front));
        let seen = peer.join().unwrap();
        assert!(seen || rung, "it would sleep through its batch");
    });
}

/// The server waits for two peers at once. It sees that both have moved on, or the last of them knocks.
///
/// Caught: either fence left out; a `must_knock` that looks at its own cursor alone.
#[test]
fn the_last_peer_to_move_is_seen_or_knocks() {
    model(3, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let seats = [0, 1].map(|_| ledger.seat(&ring.front, 0).unwrap());
        assert!(make(&ring, &mut ledger, 1));
        let peers = seats.map(|seat| {
            let ring = ring.clone();
            thread::spawn(move || {
                take(&ring, seat, 0).unwrap();
                ring.front.must_knock()
            })
        });
        let wanted = ledger.room(&ring.front, 1).err();
        let seen = wanted.is_none_or(|wanted| {
            ring.front.announce(wanted);
            ledger.room(&ring.front, 1).is_ok()
        });
        let knocked = peers.map(|peer| peer.join().unwrap());
        assert!(seen || knocked.contains(&true), "the server would sleep through both");
    });
}

/// A peer has died before it took the batch. The one that lives knocks, although the dead one's words stay as they were.
///
/// Caught: a `vacate` that leaves the dead one's cursor, or that leaves it seated.
#[test]
fn a_dead_peer_keeps_no_other_from_knocking() {
    model(3, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let [steady, dead] = [0, 1].map(|_| ledger.seat(&ring.front, 0).unwrap());
        assert!(make(&ring, &mut ledger, 1));
        ledger.vacate(&ring.front, dead);
        let peer = {
            let ring = ring.clone();
            thread::spawn(move || {
                take(&ring, steady, 0).unwrap();
                ring.front.must_knock()
            })
        };
        let seen = ledger.room(&ring.front, 1).err().is_none_or(|wanted| {
            ring.front.announce(wanted);
            ledger.room(&ring.front, 1).is_ok()
        });
        assert!(peer.join().unwrap() || seen, "the server would sleep on");
    });
}

/// All slots are held. The server sees that one was let go, or that peer knocks.
///
/// Caught: either fence left out; a `must_knock` that forgets a server that waits for any change.
#[test]
fn a_slot_that_is_let_go_is_seen_or_knocks() {
    model(3, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let seat = ledger.seat(&ring.front, 0).unwrap();
        let held: Vec<u32> = (0..SLOTS as u64)
            .map(|n| {
                assert!(make(&ring, &mut ledger, 1));
                take(&ring, seat, n).unwrap()
            })
            .collect();
        let peer = {
            let ring = ring.clone();
            thread::spawn(move || {
                ring.front.let_go(seat as usize, held[0]);
                ring.front.must_knock()
            })
        };
        let seen = match ledger.room(&ring.front, 1) {
            Ok(_) => true,
            Err(wanted) => {
                assert_eq!(wanted, ANY);
                ring.front.announce(wanted);
                ledger.room(&ring.front, 1).is_ok()
            }
        };
        assert!(peer.join().unwrap() || seen, "the server would sleep through the slot");
    });
}

/// Text of two words, each of one letter: what is torn has both.
fn text(letter: char) -> String {
    letter.to_string().repeat(8 * TEXT_WORDS)
}

/// A peer that asks while the server says something gets a whole text that was there at some moment, or nothing; once it has seen that a text was said, that one or a later one.
/// What was said at last is there when nobody says anything else.
///
/// Caught: `said` without its fence, or with a version that was not loaded with Acquire; `say` without its fence, with a version stored only at the end (so that it is never
/// odd), not stored with Release at the end, or left as it was; a length that is stored after the last version, or read after it was looked at again.
#[test]
fn what_the_server_says_is_heard_whole_or_not_at_all() {
    model(3, || {
        let ring = ring();
        ring.front.say(&text('a'));
        let peer = {
            let ring = ring.clone();
            thread::spawn(move || {
                let heard = [ring.front.said(), ring.front.said()];
                for one in &heard {
                    assert!([String::new(), text('a'), "b".into(), text('c')].contains(one), "torn: {one:?}");
                }
                let order = |one: &str| ["a", "b", "c"].iter().position(|letter| one.starts_with(letter));
                if let [Some(first), Some(second)] = [order(&heard[0]), order(&heard[1])] {
                    assert!(first <= second, "{heard:?}: time does not go back");
                }
            })
        };
        // Shorter, and longer again.
        ring.front.say("b");
        ring.front.say(&text('c'));
        peer.join().unwrap();
        assert_eq!(ring.front.said(), text('c'), "lost");
    });
}

/// A batch's failure is told with its reason: whoever sees that the run has ended hears why, whole, whatever was said before.
///
/// Caught: a `take` that loads the state without Acquire; a `say` that leaves an odd version behind.
#[test]
fn whoever_sees_that_the_run_has_failed_hears_why() {
    model(3, || {
        let (ring, mut ledger) = (ring(), Ledger::new());
        let seat = ledger.seat(&ring.front, 0).unwrap();
        let peer = {
            let ring = ring.clone();
            thread::spawn(move || match ring.front.take(seat as usize, 0) {
                Found::Nothing => {}
                Found::Over(FAILED) => assert_eq!(ring.front.said(), text('b')),
                other => panic!("{other:?}"),
            })
        };
        ring.front.say("a");
        ring.front.say(&text('b'));
        // As `Publisher::end` does.
        ring.front.state.0.store(FAILED, Ordering::Release);
        peer.join().unwrap();
    });
}
