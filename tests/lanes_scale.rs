//! A plan is a function and not a list: planning more documents than memory could name takes little of it.

use laneway::plan::{Cursor, Mixer, Order, SourcePlan, Span, Unit, Walk, Weights};
use std::process::Command;

const CHILD: &str = "LANEWAY_TEST_PLAN";
const LANES: u32 = 256;

/// Plans 10⁸ documents of two sources for all lanes, and goes some way into the third epoch of each.
fn plan() {
    let source = |name: &str, documents: u64, group: u32| {
        let spans = (0..documents / u64::from(group)).map(|g| Span { first: g * u64::from(group), documents: group, bytes: 4 << 20 });
        SourcePlan::new(1, name, spans, LANES, 2, Order::Blocks, None).unwrap()
    };
    let sources = [source("web", 90_000_000, 4000), source("code", 10_000_000, 1000)];
    let weights = Weights::new([("web", 0.7), ("code", 0.3)]).unwrap();
    let (mut taken, mut epochs) = (0u64, 0);
    for lane in 0..LANES {
        let mut mixer = Mixer::new(Unit::Samples, 1, lane, &weights);
        for round in [0, 30, 100_000] {
            let mut walks = sources.each_ref().map(|_| Walk::new(lane, Cursor { round, index: 0 }));
            for _ in 0..1000 {
                let turn = mixer.turn(&[]).unwrap();
                mixer.take(turn, 1);
                let mut picked = Vec::new();
                walks[turn].take(&sources[turn], 1, &mut picked);
                (taken, epochs) = (taken + picked.len() as u64, epochs.max(picked[0].epoch));
            }
        }
    }
    assert!(taken == 3000 * u64::from(LANES) && epochs > 2);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("PEAK {}", status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap().trim().trim_end_matches(" kB"));
}

#[test]
fn a_hundred_million_documents_are_planned_in_less_than_50_mb_of_a_process() {
    if std::env::var_os(CHILD).is_some() {
        return plan();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_hundred_million_documents_are_planned_in_less_than_50_mb_of_a_process", "--nocapture"]);
    let out = command.env(CHILD, "1").output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let peak: u64 = said.lines().find_map(|l| l.split_once("PEAK ")).unwrap_or_else(|| panic!("{said}")).1.trim().parse().unwrap();
    assert!(peak < 50_000, "{peak} KB");
    println!("{peak} KB at most, of which the test program itself is a part");
}
