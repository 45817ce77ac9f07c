//! The models that leaders have set: immutable blobs, one a generation, the last few of each group.

use crate::base::{Error, Result, Status};
use crate::exchange::wire::{GetModel, MAX_MODEL, MAX_PIECE, ModelPiece, SetModel};
use std::collections::{BTreeMap, HashMap};

/// Generations kept for each group. Workers ask for the one that they claim, which is the newest or just was.
pub const KEPT: usize = 4;

/// Bytes that all models together may take.
pub const MAX_TOTAL: usize = 1024 * 1024 * 1024;

/// Bytes of a model's id that statistics show.
const SHOWN: usize = 200;

/// A model, whole or arriving.
#[derive(Debug)]
struct Blob {
    id_bytes: usize,
    config_bytes: Option<usize>,
    run_bytes: Option<usize>,
    bytes: Vec<u8>,
}

impl Blob {
    fn size(&self) -> usize {
        self.id_bytes + self.config_bytes.unwrap_or(0) + self.run_bytes.unwrap_or(0)
    }

    fn parts(&self) -> (usize, Option<usize>, Option<usize>) {
        (self.id_bytes, self.config_bytes, self.run_bytes)
    }
}

#[derive(Debug, Default)]
struct Group {
    whole: BTreeMap<u64, Blob>,
    arriving: Option<(u64, Blob)>,
    /// When it was last set, as a count of all settings.
    touched: u64,
}

impl Group {
    fn bytes(&self) -> usize {
        self.whole.values().chain(self.arriving.iter().map(|(_, b)| b)).map(|b| b.bytes.len()).sum()
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Models {
    groups: HashMap<String, Group>,
    bytes: usize,
    touches: u64,
}

/// What a piece led to.
#[derive(Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are here.
    pub have: u64,
    /// This piece made it whole: tell the others.
    pub news: bool,
}

impl Models {
    /// Takes one piece of a model from the group's leader. Setting what is already set is no error.
    pub fn put(&mut self, ask: &SetModel, piece: &[u8]) -> Result<Progress> {
        let size = ask.id_bytes.saturating_add(ask.config_bytes.unwrap_or(0)).saturating_add(ask.run_bytes.unwrap_or(0));
        if size > MAX_MODEL as u64 {
            return Err(Error::new(
                Status::NoMemory,
                format!("the model has {size} bytes (id, configuration and run); at most {MAX_MODEL} are allowed"),
            ));
        }
        let said = |status, why: String| Err(Error::new(status, format!("generation {} of group '{}': {why}", ask.generation, ask.group)));
        let group = self.groups.entry(ask.group.clone()).or_default();
        let parts = (ask.id_bytes as usize, ask.config_bytes.map(|n| n as usize), ask.run_bytes.map(|n| n as usize));
        let (id_bytes, config_bytes, run_bytes) = parts;
        if let Some(known) = group.whole.get(&ask.generation) {
            let at = ask.offset as usize;
            let same = known.parts() == parts && known.bytes.get(at..).is_some_and(|b| b.starts_with(piece));
            return match same {
                true => Ok(Progress { have: (at + piece.len()) as u64, news: false }),
                false => said(Status::InUse, "another model was set under this number; a generation never changes".into()),
            };
        }
        if let Some((&newest, _)) = group.whole.last_key_value()
            && ask.generation < newest
        {
            return said(Status::Stale, format!("generation {newest} is set already; numbers only grow"));
        }
        if ask.offset == 0 {
            self.bytes -= group.arriving.take().map_or(0, |(_, b)| b.bytes.len());
            group.arriving = Some((ask.generation, Blob { id_bytes, config_bytes, run_bytes, bytes: Vec::new() }));
        }
        let have = match &group.arriving {
            Some((g, b)) if *g == ask.generation && b.parts() == parts => b.bytes.len(),
            _ => return said(Status::InvalidArgument, format!("a piece at byte {} of a model that has not been begun", ask.offset)),
        };
        if ask.offset != have as u64 || piece.len() as u64 > size - have as u64 || (piece.is_empty() && size > 0) {
            let (at, n) = (ask.offset, piece.len());
            return said(Status::InvalidArgument, format!("a piece of {n} bytes at byte {at}; expected one at byte {have} that ends by byte {size}"));
        }
        self.make_room(&ask.group, piece.len())?;
        let group = self.groups.get_mut(&ask.group).expect("made above");
        let (generation, mut blob) = group.arriving.take().expect("checked above");
        blob.bytes.extend_from_slice(piece);
        self.bytes += piece.len();
        let have = blob.bytes.len() as u64;
        if have < size {
            group.arriving = Some((generation, blob));
            return Ok(Progress { have, news: false });
        }
        let (id, rest) = blob.bytes.split_at(id_bytes);
        let (config, run) = rest.split_at(config_bytes.unwrap_or(0));
        if [id, config, run].into_iter().any(|text| std::str::from_utf8(text).is_err()) {
            self.bytes -= blob.bytes.len();
            return said(Status::InvalidArgument, "id, configuration or run is not UTF-8".into());
        }
        self.touches += 1;
        group.touched = self.touches;
        group.whole.insert(generation, blob);
        while group.whole.len() > KEPT {
            self.bytes -= group.whole.pop_first().map_or(0, |(_, b)| b.bytes.len());
        }
        Ok(Progress { have, news: true })
    }

    /// Forgets what is older in the group itself, then whole groups, longest unset first, until `more` bytes fit.
    fn make_room(&mut self, group: &str, more: usize) -> Result<()> {
        while self.bytes + more > MAX_TOTAL {
            let own = self.groups.get_mut(group).filter(|g| g.whole.len() > 1).and_then(|g| g.whole.pop_first());
            if let Some((_, blob)) = own {
                self.bytes -= blob.bytes.len();
                continue;
            }
            let oldest = self.groups.iter().filter(|(name, _)| *name != group).min_by_key(|(_, g)| g.touched).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else {
                return Err(Error::new(Status::NoMemory, format!("models take {} bytes; at most {MAX_TOTAL} are allowed", self.bytes)));
            };
            self.forget(&oldest);
        }
        Ok(())
    }

    /// One piece of a model, and its measures.
    pub fn get(&self, ask: &GetModel) -> Result<(ModelPiece, Vec<u8>)> {
        let said = |status, why: String| Err(Error::new(status, format!("generation {} of group '{}' {why}", ask.generation, ask.group)));
        let group = self.groups.get(&ask.group);
        let Some(blob) = group.and_then(|g| g.whole.get(&ask.generation)) else {
            return match group.and_then(|g| g.whole.last_key_value()) {
                Some((&newest, _)) if ask.generation < newest => said(Status::Stale, format!("is no longer kept; the newest is {newest}")),
                Some((&newest, _)) => said(Status::NotFound, format!("is not known to the broker; the newest is {newest}")),
                None => said(Status::NotFound, "is not known to the broker, and no other one either".into()),
            };
        };
        let Some(rest) = blob.bytes.get(ask.offset as usize..).filter(|_| ask.offset <= blob.size() as u64) else {
            return said(Status::InvalidArgument, format!("has {} bytes; there is no byte {}", blob.size(), ask.offset));
        };
        let piece = rest[..rest.len().min(MAX_PIECE)].to_vec();
        let wide = |n: Option<usize>| n.map(|n| n as u64);
        Ok((ModelPiece { id_bytes: blob.id_bytes as u64, config_bytes: wide(blob.config_bytes), run_bytes: wide(blob.run_bytes) }, piece))
    }

    /// Forgets a group.
    pub fn forget(&mut self, group: &str) {
        if let Some(group) = self.groups.remove(group) {
            self.bytes -= group.bytes();
        }
    }

    /// `(group, newest generation, its id or the beginning of it, generations kept)`, for statistics.
    pub fn newest(&self) -> impl Iterator<Item = (&str, u64, String, usize)> {
        self.groups.iter().filter_map(|(name, group)| {
            let (generation, blob) = group.whole.last_key_value()?;
            let id = String::from_utf8_lossy(&blob.bytes[..blob.id_bytes.min(SHOWN)]).into_owned();
            Some((name.as_str(), *generation, id, group.whole.len()))
        })
    }

    /// Bytes that they take together.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(generation: u64, id: &str, config: Option<&str>, offset: u64) -> SetModel {
        let config_bytes = config.map(|c| c.len() as u64);
        SetModel { group: "g".into(), generation, id_bytes: id.len() as u64, config_bytes, run_bytes: None, offset }
    }

    fn get(generation: u64, offset: u64) -> GetModel {
        GetModel { group: "g".into(), generation, offset }
    }

    #[test]
    fn a_model_arrives_in_pieces_and_never_changes() {
        let mut models = Models::default();
        assert_eq!(models.put(&set(1, "abc", Some("{}"), 0), b"ab").unwrap(), Progress { have: 2, news: false });
        assert_eq!(models.get(&get(1, 0)).unwrap_err().status, Status::NotFound);
        assert!(models.put(&set(1, "abc", Some("{}"), 3), b"{").is_err(), "a gap");
        assert!(models.put(&set(1, "abc", Some("{}"), 2), b"c{}more").is_err(), "too much");
        assert_eq!(models.put(&set(1, "abc", Some("{}"), 2), b"c{}").unwrap(), Progress { have: 5, news: true });
        let (measures, bytes) = models.get(&get(1, 1)).unwrap();
        assert_eq!((measures.id_bytes, measures.config_bytes, bytes.as_slice()), (3, Some(2), b"bc{}".as_slice()));
        assert_eq!(models.put(&set(1, "abc", Some("{}"), 0), b"abc{}").unwrap(), Progress { have: 5, news: false });
        assert_eq!(models.put(&set(1, "abd", Some("{}"), 0), b"abd{}").unwrap_err().status, Status::InUse);
        assert!(models.get(&get(1, 6)).is_err());
        assert_eq!(models.put(&set(2, "", None, 0), b"").unwrap(), Progress { have: 0, news: true });
    }

    #[test]
    fn the_last_four_are_kept_and_counted() {
        let mut models = Models::default();
        for generation in 1..=9 {
            models.put(&set(generation, "0123456789", None, 0), b"0123456789").unwrap();
        }
        assert_eq!(models.bytes(), KEPT * 10);
        assert_eq!(models.get(&get(5, 0)).unwrap_err().status, Status::Stale);
        assert!(models.get(&get(6, 0)).is_ok());
        assert_eq!(models.get(&get(10, 0)).unwrap_err().status, Status::NotFound);
        assert_eq!(models.put(&set(3, "x", None, 0), b"x").unwrap_err().status, Status::Stale);
        assert_eq!(models.put(&set(10, "\u{ff}", None, 0), b"\xff\xff").unwrap_err().status, Status::InvalidArgument);
        models.forget("g");
        assert_eq!(models.bytes(), 0);
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_arrives() {
        let ask = SetModel { id_bytes: u64::MAX, ..set(1, "", Some("x"), 0) };
        assert_eq!(Models::default().put(&ask, b"").unwrap_err().status, Status::NoMemory);
    }
}
