//! What a loader is, as JSON: for people, and for programs that want to know what they were given.

use super::{Parts, Stats};
use crate::plan::{BatchSchedule, RankLanes};
use crate::recipe::Recipe;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is known of data and tokenizer once they are open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// `name`, `documents`, `groups`, `shards`, `fingerprint` of each dataset.
    pub datasets: Vec<Value>,
    /// `path`, `engine`, `fingerprint`, `vocab_size`, `bos`, `eos`, `pad`.
    pub tokenizer: Value,
    /// What rows are filled up with.
    pub pad_token_id: u32,
}

impl About {
    /// From what was opened.
    pub fn of(parts: &Parts) -> About {
        let tokenizer = parts.decoder.as_ref().map(|t| {
            json!({
                "path": t.path().to_string_lossy(), "engine": parts.tokenizer_engine, "fingerprint": format!("{:016x}", parts.tokenizer),
                "vocab_size": t.vocab_size(), "bos": t.bos(), "eos": t.eos(), "pad": t.pad(),
            })
        });
        let datasets = parts.recipe.datasets.iter().zip(&parts.datasets).map(|(d, data)| {
            json!({
                "name": d.spec.name, "documents": data.documents(), "groups": data.groups().len(), "shards": data.shards().len(),
                "fingerprint": format!("{:016x}", data.fingerprint()),
            })
        });
        About { datasets: datasets.collect(), tokenizer: tokenizer.into(), pad_token_id: parts.pad_token_id }
    }

    /// What a loader of that rank is at that step.
    pub fn at(&self, recipe: &Recipe, schedule: &BatchSchedule, rank: &RankLanes, step: u64) -> Value {
        let each = schedule.rows_at(step);
        json!({
            "fingerprint": format!("{:016x}", recipe.fingerprint()),
            "step": step,
            "lanes": schedule.lanes(),
            "first_lane": rank.lanes.start,
            "end_lane": rank.lanes.end,
            "global_batch": schedule.global_batch(step),
            "rows": rank.rows(each),
            "microbatch_size": rank.microbatch_rows(each),
            "microbatches": rank.microbatches(each),
            "row_length": recipe.pack.max_length,
            "pad_token_id": self.pad_token_id,
            "finite": recipe.is_finite(),
            "datasets": self.datasets,
            "tokenizer": self.tokenizer,
        })
    }
}

/// What a pipeline has done.
pub fn stats(stats: &Stats) -> serde_json::Map<String, Value> {
    let (counts, left) = (&stats.counts, &stats.counts.left_out);
    let object = json!({
        "documents": counts.documents,
        "tokens": counts.tokens,
        "rows": counts.rows,
        "epoch": counts.epoch,
        "truncated_tokens": counts.truncated,
        "empty": left.empty,
        "filtered": left.filtered,
        "skipped": left.skipped,
        "dropped": left.dropped,
        "dropped_tokens": left.dropped_tokens,
        "bytes_read": stats.bytes_read,
        "tokenizer": stats.tokenizer,
        "generate": stats.generate,
    });
    match object {
        Value::Object(map) => map,
        _ => unreachable!("written as an object above"),
    }
}
