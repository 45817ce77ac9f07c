use super::*;
use std::time::Duration;

fn publisher() -> Publisher {
    Publisher::create(PAGE, PAGE).unwrap()
}

fn join(publisher: &mut Publisher, at: u64) -> Peer<()> {
    let ring = Ring::open(publisher.fd(), PAGE).unwrap();
    Peer::new(ring, publisher.seat(at).unwrap(), at, ()).unwrap()
}

/// Publishes a batch whose first byte is its number; false if there is no room.
fn publish(publisher: &mut Publisher, ahead: u64) -> bool {
    let Some(slot) = publisher.slot(ahead).unwrap() else { return false };
    let number = publisher.head() as u8;
    publisher.bytes(slot)[0] = number;
    publisher.publish(slot);
    true
}

fn take(peer: &mut Peer<()>) -> Option<Held> {
    match peer.take().unwrap() {
        Taken::Batch(held) => Some(held),
        _ => None,
    }
}

#[test]
fn all_peers_see_every_batch_and_the_slowest_sets_the_pace() {
    let mut server = publisher();
    assert!(!publish(&mut server, 3), "nothing is made for nobody");
    let mut peers = [join(&mut server, 0), join(&mut server, 0)];
    assert_eq!((0..10).filter(|_| publish(&mut server, 3)).count(), 3);
    for _ in 0..3 {
        assert!(take(&mut peers[0]).is_some());
    }
    assert!(!publish(&mut server, 3) && take(&mut peers[0]).is_none(), "the second peer has taken none");
    for n in 0..200u8 {
        let held = take(&mut peers[1]).unwrap();
        assert_eq!(held.bytes()[0], n);
        assert!(publish(&mut server, 3));
        assert_eq!(take(&mut peers[0]).unwrap().bytes()[0], n + 3);
    }
}

#[test]
fn what_is_held_stays_and_stops_nobody() {
    let mut server = publisher();
    let mut peer = join(&mut server, 0);
    let held: Vec<Held> = (0..60)
        .map(|_| {
            assert!(publish(&mut server, 2));
            take(&mut peer).unwrap()
        })
        .collect();
    assert_eq!(peer.held(), 60);
    for _ in 0..100 {
        assert!(publish(&mut server, 2));
        drop(take(&mut peer).unwrap());
    }
    assert!(held.iter().enumerate().all(|(n, h)| h.bytes()[0] == n as u8));
    drop(peer);
    drop(held);
    assert!(!publish(&mut server, 2), "a peer that has left wants no batch");
}

#[test]
fn a_peer_that_has_gone_keeps_nobody_and_its_seat_is_given_again() {
    let mut server = publisher();
    let (mut first, second) = (join(&mut server, 0), join(&mut server, 0));
    while publish(&mut server, 4) {}
    std::mem::forget(second);
    while take(&mut first).is_some() {}
    assert!(!publish(&mut server, 4));
    server.vacate(1);
    assert!(publish(&mut server, 4));
    assert_eq!((server.seated(), server.seat(5)), (1, Some(1)));
}

#[test]
fn batches_are_kept_for_peers_that_have_not_come_yet() {
    let mut server = publisher();
    server.await_peers(1);
    let mut first = join(&mut server, 0);
    while publish(&mut server, 3) {}
    (0..3).for_each(|n| assert_eq!(take(&mut first).unwrap().bytes()[0], n));
    assert!(!publish(&mut server, 3) && server.oldest() == 0 && first.ring().awaited() == 1);
    let mut second = join(&mut server, 0);
    server.await_peers(0);
    (0..3).for_each(|n| assert_eq!(take(&mut second).unwrap().bytes()[0], n));
    assert!(publish(&mut server, 3));
}

#[test]
fn the_end_and_an_error_come_after_the_last_batch() {
    let mut server = publisher();
    let mut peer = join(&mut server, 0);
    publish(&mut server, 3);
    server.end(End::Failed(&Error::new(Status::Data, "wiki.jsonl line 3: é")));
    assert!(take(&mut peer).is_some());
    let Taken::Failed(error) = peer.take().unwrap() else { panic!("it goes on") };
    assert_eq!((error.status, error.message.as_str()), (Status::Data, "wiki.jsonl line 3: é"));
    let mut ended = publisher();
    let mut peer = join(&mut ended, 0);
    ended.end(End::Stream);
    assert!(matches!(peer.take().unwrap(), Taken::Ended));
}

#[test]
fn what_a_batch_waits_for_is_told_until_it_comes_and_cut_where_there_is_no_room() {
    let mut server = publisher();
    let peer = join(&mut server, 0);
    assert_eq!(peer.delay(), "");
    for said in ["no worker is attached", "é", ""] {
        server.delay(said);
        assert_eq!(peer.delay(), said);
    }
    server.delay(&"é".repeat(TEXT_WORDS * 8));
    assert_eq!(peer.delay(), "é".repeat(TEXT_WORDS * 4));
    peer.ring().front().text_version.fetch_add(1, Ordering::Relaxed);
    assert_eq!(peer.delay(), "", "the server is writing");
}

#[test]
fn who_was_replaced_is_told_at_once_and_who_was_moved_after_the_last_batch() {
    for moved in [false, true] {
        let mut server = publisher();
        let mut peer = join(&mut server, 0);
        publish(&mut server, 3);
        let stale = Error::new(Status::Stale, "moved");
        server.end(if moved { End::Moved } else { End::Replaced(&stale) });
        match peer.take().unwrap() {
            Taken::Batch(_) => assert!(moved && matches!(peer.take().unwrap(), Taken::Moved)),
            Taken::Failed(e) => assert!(!moved && e.status == Status::Stale),
            _ => panic!("it goes on"),
        }
    }
}

#[test]
fn foreign_memory_is_refused() {
    let server = publisher();
    assert!(Ring::open(server.fd(), 2 * PAGE).is_err_and(|e| e.message.contains("size")));
    let other = memory::memfd("other", SLOTS_AT + SLOTS * PAGE).unwrap();
    assert!(Ring::open(other.as_fd(), PAGE).is_err_and(|e| e.message.contains("LWRING01")));
    let unsealed = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(Ring::open(unsealed.as_fd(), PAGE).is_err_and(|e| e.message.contains("sealed")));
}

#[test]
fn a_slot_that_does_not_exist_is_noticed_and_nothing_is_taken() {
    let front = words::Front::unbound();
    front.seat(0, 0);
    front.publish(0, SLOTS as u32);
    assert_eq!((front.take(0, 0), front.seats[0].holds.load(Ordering::Relaxed)), (words::Found::Wrong(64), 0));
    front.publish(0, 63);
    assert_eq!((front.take(0, 0), front.take(0, 1)), (words::Found::Batch(63), words::Found::Nothing));
}

#[test]
fn what_a_peer_asks_for_is_told_to_the_server_until_the_peer_has_gone() {
    let mut server = publisher();
    let mut peers = [join(&mut server, 0), join(&mut server, 0)];
    publish(&mut server, 3);
    take(&mut peers[0]).unwrap().want(1);
    take(&mut peers[1]).unwrap().want(4);
    assert_eq!(server.wanted(), 5);
    server.vacate(1);
    assert_eq!(server.wanted(), 1);
    server.vacate(0);
    assert_eq!((server.seat(1), server.wanted()), (Some(0), 0), "whoever comes asks anew");
}

#[test]
fn slots_in_use_are_those_that_a_peer_has_not_taken_or_still_holds() {
    let mut server = publisher();
    let mut peer = join(&mut server, 0);
    assert_eq!((server.slots_in_use(), server.ready()), ((0, 0), 0));
    (0..3).for_each(|_| assert!(publish(&mut server, 3)));
    assert_eq!((server.slots_in_use(), server.ready()), ((3, 3), 3));
    let held = take(&mut peer);
    drop(take(&mut peer));
    assert_eq!((server.slots_in_use(), server.ready()), ((2, 3), 1), "one is held, one was let go");
    drop(held);
    assert_eq!(server.slots_in_use(), (1, 3));
    assert!(!server.has_left(0));
    drop(peer);
    assert!(server.has_left(0));
}

#[test]
fn threads_hand_over_every_batch_while_both_sides_sleep() {
    let mut server = publisher();
    let peers: Vec<Peer<()>> = (0..3).map(|_| join(&mut server, 0)).collect();
    const N: u64 = 3000;
    std::thread::scope(|scope| {
        for mut peer in peers {
            scope.spawn(move || {
                let mut seen = 0;
                while seen < N {
                    match peer.take().unwrap() {
                        Taken::Batch(held) => {
                            assert_eq!(held.bytes()[0], seen as u8);
                            seen += 1;
                        }
                        _ => peer.wait(Duration::from_millis(100)),
                    }
                }
            });
        }
        while server.head() < N {
            if !publish(&mut server, 2) {
                server.wait(2, Duration::from_millis(100));
            }
        }
    });
}
