//! A checkpoint: for each lane an anchor and how many rows of its window were delivered, and what all of it belongs to.
//! Its size does not depend on how far a run has come, and saving changes nothing in the stream.
//!
//! The binary form is `LWCK`, the version, the length of the description as a LEB128 integer, the description as JSON, and
//! for each lane its number, length and bytes. The JSON form is `{"meta": …, "lanes": {"17": base64, …}}`: the lanes of
//! several ranks' checkpoints together, as one merged dictionary, are a checkpoint of all of them.

use super::codec::{Reader, put};
use crate::base::{Error, Result, Status, fnv1a, mix};
use crate::recipe::{Field, difference};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

const MAGIC: &[u8; 4] = b"LWCK";

/// The version of both forms. A reader refuses what is newer.
pub const VERSION: u32 = 1;

/// A dataset as a checkpoint remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataIdentity {
    /// Its name.
    pub name: String,
    /// Its fingerprint, in hexadecimal.
    pub fingerprint: String,
    /// How many files it has.
    pub shards: u64,
    /// Hashes of up to [`DataIdentity::PARTS`] runs of files, so that a change can be located.
    pub parts: Vec<u32>,
}

impl DataIdentity {
    /// Most runs of files that are hashed.
    pub const PARTS: u64 = 32;

    /// From the fingerprint and each file's own.
    pub fn new(name: &str, fingerprint: u64, shards: &[u64]) -> DataIdentity {
        let count = shards.len() as u64;
        let parts = count.min(Self::PARTS);
        let hash = |part: u64| shards[Self::run(part, parts, count)].iter().fold(0, |h, s| crate::base::mix(h ^ s)) as u32;
        DataIdentity { name: name.into(), fingerprint: format!("{fingerprint:016x}"), shards: count, parts: (0..parts).map(hash).collect() }
    }

    fn run(part: u64, parts: u64, count: u64) -> std::ops::Range<usize> {
        (part * count / parts) as usize..((part + 1) * count / parts) as usize
    }

    /// Where the data now differs from what it was; `paths` are those of now.
    fn difference(&self, now: &DataIdentity, paths: &[String]) -> Option<String> {
        if self.fingerprint == now.fingerprint {
            return None;
        }
        let what = if self.shards != now.shards {
            format!("it had {} files and now has {}", self.shards, now.shards)
        } else {
            let parts = self.parts.len() as u64;
            match self.parts.iter().zip(&now.parts).position(|(a, b)| a != b) {
                Some(part) => {
                    let run = Self::run(part as u64, parts, self.shards);
                    let last = paths.get(run.end - 1).map_or(String::new(), |p| if run.len() > 1 { format!(" to {p}") } else { String::new() });
                    format!("a file was changed, renamed or moved in the order, first at {}{last}", paths.get(run.start).map_or("?", String::as_str))
                }
                None => "its files differ".into(),
            }
        };
        Some(format!("dataset '{}' is not what it was: {what}", self.name))
    }
}

/// Where in a step a checkpoint was taken, if not at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WithinStep {
    /// Microbatches delivered.
    pub microbatch: u64,
    /// Their size, if one was set.
    pub size: Option<u64>,
    /// The number of ranks.
    pub ranks: u32,
}

/// Another model for teachers, set during the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelChange {
    /// The step from which it holds.
    pub from_step: u64,
    /// Its name.
    pub model_id: String,
    /// Its configuration, a JSON object, if it has one.
    pub model_cfg: Option<serde_json::Value>,
}

/// What the lanes' states belong to. The same on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Of the format.
    pub version: u32,
    /// The next step.
    pub step: u64,
    /// Where in it, if not at its start.
    pub within: Option<WithinStep>,
    /// How many lanes there are in all.
    pub lanes: u32,
    /// Every field of the recipe.
    pub recipe: BTreeMap<String, String>,
    /// The datasets.
    pub data: Vec<DataIdentity>,
    /// The tokenizer's fingerprint, in hexadecimal.
    pub tokenizer: String,
    /// Weights set during the run, and the step from which each holds.
    pub mixture: Vec<(u64, Vec<f64>)>,
    /// Models set during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelChange>,
}

impl Meta {
    /// An error, naming the first thing that differs, unless a run described by `now` may go on from `self`.
    pub fn check(&self, now: &Meta, paths: &[Vec<String>]) -> Result<()> {
        match self.difference(now, paths) {
            Some(what) => Err(refused(what)),
            None if self.data.len() != now.data.len() => {
                Err(corrupt(format!("it tells of {} datasets and its recipe names {}", self.data.len(), now.data.len())))
            }
            None => Ok(()),
        }
    }

    /// The first thing by which rows of `now` would not be rows of `self`; `paths` are the files of now.
    pub fn difference(&self, now: &Meta, paths: &[Vec<String>]) -> Option<String> {
        // First what others follow from: another tokenizer pads with another token, and another dataset's fields have other names.
        if self.tokenizer != now.tokenizer {
            return Some("the tokenizer's file is not what it was (tokenizer.path)".into());
        }
        let fields = |map: &BTreeMap<String, String>| {
            let mut fields: Vec<Field> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            fields.sort_by_key(|(name, _)| name != "datasets");
            fields
        };
        let (ours, theirs) = (fields(&now.recipe), fields(&self.recipe));
        if let Some((name, ours, theirs)) = difference(&ours, &theirs) {
            let shown = |v: Option<&str>| v.unwrap_or("not there").to_string();
            return Some(format!("{name} is {} now and was {} when it was saved", shown(ours), shown(theirs)));
        }
        self.data.iter().zip(&now.data).zip(paths).find_map(|((was, now), paths)| was.difference(now, paths))
    }
}

/// By which a lane's state is known to be whole, and that lane's.
fn check(lane: u32, entry: &[u8]) -> [u8; 4] {
    (mix(fnv1a(entry) ^ u64::from(lane)) as u32).to_le_bytes()
}

fn refused(what: String) -> Error {
    let hint = "a run goes on only with the recipe and data that it was started with";
    Error::new(Status::Refused, format!("this checkpoint does not fit: {what}; {hint}"))
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::new(Status::Corrupt, format!("this is not a checkpoint, or it is damaged: {what}"))
}

/// The state of some lanes: of those that a rank owns, or of any more.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// What it belongs to.
    pub meta: Meta,
    /// By lane: rows of the window delivered, the anchor, and a check of both, as [`Checkpoint::put_lane`] writes them.
    pub lanes: BTreeMap<u32, Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonForm {
    meta: Meta,
    lanes: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Adds a lane.
    pub fn put_lane(&mut self, lane: u32, anchor: &[u8], taken: u64) {
        let mut entry = Vec::with_capacity(anchor.len() + 8);
        put(&mut entry, taken);
        entry.extend_from_slice(anchor);
        entry.extend_from_slice(&check(lane, &entry));
        self.lanes.insert(lane, entry);
    }

    /// A lane's anchor and the rows of its window that were delivered.
    pub fn lane(&self, lane: u32) -> Result<(Arc<[u8]>, u64)> {
        let Some(entry) = self.lanes.get(&lane) else {
            let message = format!(
                "the checkpoint holds no state of lane {lane} (it has {} of {} lanes); load the checkpoints of all ranks together",
                self.lanes.len(),
                self.meta.lanes
            );
            return Err(Error::new(Status::NotFound, message));
        };
        // A state that was damaged, or is another lane's, could be a valid one that gives other rows.
        let entry = entry.split_last_chunk().filter(|(entry, said)| check(lane, entry) == **said).map(|(entry, _)| entry);
        let mut reader = Reader::new(entry.ok_or_else(|| corrupt(format!("the state of lane {lane} is not as it was saved")))?);
        let taken = reader.get().map_err(|e| e.within(format!("lane {lane}")))?;
        Ok((reader.rest().into(), taken))
    }

    /// Adds the lanes of another rank's checkpoint of the same moment.
    pub fn merge(&mut self, other: Checkpoint) -> Result<()> {
        if self.meta != other.meta {
            let (a, b) = (self.meta.step, other.meta.step);
            let what = if a != b { format!("one was saved at step {a} and the other at step {b}") } else { "their descriptions differ".into() };
            return Err(Error::new(Status::Refused, format!("these checkpoints are not of one moment of one run: {what}")));
        }
        self.lanes.extend(other.lanes);
        Ok(())
    }

    /// The binary form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let meta = serde_json::to_vec(&self.meta).expect("a description is always JSON");
        let mut out = Vec::with_capacity(meta.len() + self.lanes.len() * 64 + 16);
        out.extend_from_slice(MAGIC);
        put(&mut out, u64::from(VERSION));
        put(&mut out, meta.len() as u64);
        out.extend_from_slice(&meta);
        put(&mut out, self.lanes.len() as u64);
        for (lane, entry) in &self.lanes {
            put(&mut out, u64::from(*lane));
            put(&mut out, entry.len() as u64);
            out.extend_from_slice(entry);
        }
        out
    }

    /// Reads the binary form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Checkpoint> {
        let Some(rest) = bytes.strip_prefix(MAGIC) else { return Err(corrupt("it does not start with LWCK")) };
        let mut reader = Reader::new(rest);
        check_version(reader.get()?)?;
        let meta = serde_json::from_slice(reader.get_bytes()?).map_err(corrupt)?;
        let mut lanes = BTreeMap::new();
        for _ in 0..reader.get_count()? {
            let lane = reader.get_u32()?;
            if lanes.insert(lane, reader.get_bytes()?.to_vec()).is_some() {
                return Err(corrupt(format!("lane {lane} appears twice")));
            }
        }
        reader.finish()?;
        Checkpoint { meta, lanes }.checked()
    }

    /// The JSON form.
    pub fn to_json(&self) -> String {
        let lanes = self.lanes.iter().map(|(lane, entry)| (lane.to_string(), base64(entry))).collect();
        serde_json::to_string(&JsonForm { meta: self.meta.clone(), lanes }).expect("a checkpoint is always JSON")
    }

    /// Reads the JSON form.
    pub fn from_json(text: &str) -> Result<Checkpoint> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(corrupt)?;
        check_version(value["meta"]["version"].as_u64().unwrap_or(0))?;
        let form: JsonForm = serde_json::from_value(value).map_err(corrupt)?;
        let lane = |(lane, text): (String, String)| {
            let number = lane.parse().map_err(|_| corrupt(format!("lane '{lane}'")))?;
            let entry = unbase64(&text).ok_or_else(|| corrupt(format!("lane {lane} is not base64")))?;
            Ok((number, entry))
        };
        let lanes = form.lanes.into_iter().map(lane).collect::<Result<_>>()?;
        Checkpoint { meta: form.meta, lanes }.checked()
    }

    fn checked(self) -> Result<Checkpoint> {
        match self.lanes.keys().find(|lane| **lane >= self.meta.lanes) {
            Some(lane) => Err(corrupt(format!("lane {lane} of {}", self.meta.lanes))),
            None => Ok(self),
        }
    }
}

fn check_version(version: u64) -> Result<()> {
    match version {
        1 => Ok(()),
        0 => Err(corrupt("it has no version")),
        _ => Err(Error::new(Status::Unsupported, format!("this checkpoint has version {version}; this library reads {VERSION}: use a newer one"))),
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0u32, |w, (i, b)| w | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            let digit = if i <= chunk.len() { DIGITS[(word >> (18 - 6 * i) & 63) as usize] } else { b'=' };
            out.push(char::from(digit));
        }
    }
    out
}

fn unbase64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.chunks(4) {
        let mut word = 0u32;
        for (i, digit) in chunk.iter().enumerate() {
            word |= (DIGITS.iter().position(|d| d == digit)? as u32) << (18 - 6 * i);
        }
        out.extend_from_slice(&word.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Checkpoint {
        let meta = Meta {
            version: VERSION,
            step: 7,
            within: None,
            lanes: 20,
            recipe: [("seed".to_string(), "42".to_string()), ("pack.max_length".into(), "2048".into())].into(),
            data: vec![DataIdentity::new("wiki", 99, &[1, 2, 3])],
            tokenizer: "00ff".into(),
            mixture: vec![(3, vec![0.25, 0.75])],
            models: vec![ModelChange { from_step: 4, model_id: "b".into(), model_cfg: Some(serde_json::json!({ "layer": 2 })) }],
        };
        let mut checkpoint = Checkpoint { meta, lanes: BTreeMap::new() };
        (0..20).for_each(|lane| checkpoint.put_lane(lane, &vec![lane as u8 * 13; lane as usize], u64::from(lane) * 100));
        checkpoint
    }

    #[test]
    fn both_forms_come_back_and_several_parts_make_a_whole() {
        let whole = sample();
        assert_eq!(Checkpoint::from_bytes(&whole.to_bytes()).unwrap(), whole);
        assert_eq!(Checkpoint::from_json(&whole.to_json()).unwrap(), whole);
        assert_eq!(whole.lane(3).unwrap(), (vec![39u8; 3].into(), 300));
        let part = |keep: fn(&u32) -> bool| Checkpoint { lanes: whole.lanes.clone().into_iter().filter(|(l, _)| keep(l)).collect(), ..whole.clone() };
        let mut merged = part(|l| l % 2 == 0);
        assert_eq!(
            merged.lane(3).unwrap_err().message,
            "the checkpoint holds no state of lane 3 (it has 10 of 20 lanes); load the checkpoints of all ranks together"
        );
        merged.merge(part(|l| l % 2 == 1)).unwrap();
        assert_eq!(merged, whole);
        let mut later = whole.clone();
        later.meta.step = 8;
        assert!(merged.merge(later).unwrap_err().message.contains("step 7 and the other at step 8"));
    }

    #[test]
    fn damaged_and_foreign_bytes_are_errors_and_never_panics() {
        let bytes = sample().to_bytes();
        for cut in 0..bytes.len() {
            assert!(Checkpoint::from_bytes(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            let _ = Checkpoint::from_bytes(&changed);
        }
        // Whatever happens to a lane's state, in either form, it is not taken for one.
        let whole = sample();
        for lane in 0..20 {
            for bit in 0..whole.lanes[&lane].len() * 8 {
                let mut changed = whole.clone();
                changed.lanes.get_mut(&lane).unwrap()[bit / 8] ^= 1 << (bit % 8);
                let e = Checkpoint::from_json(&changed.to_json()).unwrap().lane(lane).unwrap_err();
                assert!(e.message.contains(&format!("the state of lane {lane} is not as it was saved")), "{e}");
            }
            let mut swapped = whole.clone();
            swapped.lanes.insert(lane, whole.lanes[&((lane + 1) % 20)].clone());
            assert!(swapped.lane(lane).is_err(), "the state of another lane");
            swapped.lanes.insert(lane, Vec::new());
            assert!(swapped.lane(lane).is_err(), "no state at all");
        }
        let newer = sample().to_json().replace("\"version\":1", "\"version\":2");
        assert!(Checkpoint::from_json(&newer).unwrap_err().message.contains("version 2; this library reads 1"));
        for text in ["", "{}", "[]", "{\"meta\":{\"version\":1},\"lanes\":{}}"] {
            assert!(Checkpoint::from_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_differs_is_named() {
        let was = sample().meta;
        let check = |change: fn(&mut Meta)| {
            let mut now = was.clone();
            change(&mut now);
            was.check(&now, &[vec!["a.jsonl".into(), "b.jsonl".into(), "c.jsonl".into()]]).map_err(|e| e.message)
        };
        assert_eq!(check(|_| ()), Ok(()));
        assert!(check(|m| m.recipe.insert("seed".into(), "43".into()).map_or((), drop)).unwrap_err().contains("seed is 43 now and was 42"));
        assert!(
            check(|m| m.data = vec![DataIdentity::new("wiki", 98, &[1, 5, 3])])
                .unwrap_err()
                .contains("'wiki' is not what it was: a file was changed, renamed or moved in the order, first at b.jsonl")
        );
        assert!(check(|m| m.data = vec![DataIdentity::new("wiki", 98, &[1, 2, 3, 4])]).unwrap_err().contains("had 3 files and now has 4"));
        assert!(check(|m| m.tokenizer = "00fe".into()).unwrap_err().contains("tokenizer"));
    }

    #[test]
    fn base64_is_the_standard_one() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!((base64(bytes.as_bytes()), unbase64(text)), (text.to_string(), Some(bytes.as_bytes().to_vec())));
        }
        assert!(unbase64("Zg=").is_none() && unbase64("Z!==").is_none() && unbase64("====").is_none());
    }
}
