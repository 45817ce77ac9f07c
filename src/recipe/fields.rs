//! A recipe as a flat list of named values: what is written as TOML, hashed, kept in checkpoints and compared by name.

use super::*;
use std::fmt::Write as _;

/// A field's name, as in `pack.max_length`, and its value as TOML.
pub type Field = (String, String);

/// The first field in which two lists differ, with both values (`None` where a list lacks it).
pub fn difference<'a>(ours: &'a [Field], theirs: &'a [Field]) -> Option<(&'a str, Option<&'a str>, Option<&'a str>)> {
    let value = |list: &'a [Field], name: &str| list.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    let names = ours.iter().chain(theirs).map(|(name, _)| name.as_str());
    names.map(|name| (name, value(ours, name), value(theirs, name))).find(|(_, a, b)| a != b)
}

fn text(value: &str) -> String {
    // JSON strings without \/ and with \uXXXX are TOML basic strings.
    serde_json::to_string(value).expect("a string is always JSON").replace('\u{7f}', "\\u007f")
}

fn list(values: &[String]) -> String {
    format!("[{}]", values.iter().map(|v| text(v)).collect::<Vec<_>>().join(", "))
}

/// A JSON value, without nulls, as TOML on one line.
fn toml(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(s) => text(s),
        serde_json::Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        serde_json::Value::Object(map) if map.is_empty() => "{}".into(),
        serde_json::Value::Object(map) => {
            let entries: Vec<String> = map.iter().map(|(name, v)| format!("{} = {}", text(name), toml(v))).collect();
            format!("{{ {} }}", entries.join(", "))
        }
        // A float of TOML keeps its point or its exponent, as JSON writes it.
        other => other.to_string(),
    }
}

fn layout_text(generate: &GenerateRecipe) -> String {
    let layout: serde_json::Value = serde_json::from_str(&generate.layout.to_json()).expect("a layout is always JSON");
    toml(&layout["specs"])
}

fn pad_to_text(pad_to: PadTo) -> String {
    match pad_to {
        PadTo::Longest => text("longest"),
        PadTo::Max => text("max"),
        PadTo::Multiple(of) => of.to_string(),
    }
}

impl Recipe {
    /// Every field that may change a byte, whatever stands for the data and the tokenizer left out: paths may change as
    /// long as what lies there is the same, which the [datasets'](crate::data::Dataset::fingerprint) and the tokenizer's
    /// fingerprints tell.
    pub fn fields(&self) -> Vec<Field> {
        let mut fields: Vec<Field> = vec![("seed".into(), self.seed.to_string())];
        let mut add = |name: String, value: String| fields.push((name, value));
        let names: Vec<String> = self.datasets.iter().map(|d| d.spec.name.clone()).collect();
        add("datasets".into(), list(&names));
        for d in &self.datasets {
            let name = |field: &str| format!("dataset.{}.{field}", d.spec.name);
            add(name("format"), d.spec.format.map_or("unset".into(), |f| text(f.name())));
            add(name("text_field"), text(&d.spec.text_field));
            add(name("text_unit"), text(d.spec.text_unit.name()));
            add(name("on_error"), text(d.spec.on_error.name()));
            add(name("weight"), format!("{:?}", d.weight));
            add(name("exhausted"), text(d.exhausted.name()));
            add(name("epochs"), d.epochs.to_string());
        }
        add("mixture.unit".into(), text(self.mixture.unit.name()));
        add("mixture.schedule".into(), self.schedule_text());
        add("tokenizer.special_tokens".into(), text(self.tokenizer.special_tokens.name()));
        add("tokenizer.parse_special".into(), self.tokenizer.parse_special.to_string());
        for (name, token) in self.named_tokens() {
            add(format!("tokenizer.{name}"), text(token));
        }
        let pack = &self.pack;
        add("pack.max_length".into(), pack.max_length.to_string());
        add("pack.algorithm".into(), text(pack.algorithm.name()));
        match pack.algorithm {
            Algorithm::FirstFit | Algorithm::BestFit => add("pack.num_bins".into(), pack.num_bins.to_string()),
            Algorithm::BestFitWrap => add("pack.candidate_pool_size".into(), pack.candidate_pool_size.to_string()),
            Algorithm::Wrap | Algorithm::None => {}
        }
        if let Some(most) = pack.max_sequences_per_bin {
            add("pack.max_sequences_per_bin".into(), most.to_string());
        }
        if pack.min_sequence_length != 1 {
            add("pack.min_sequence_length".into(), pack.min_sequence_length.to_string());
        }
        if pack.flush_strategy != FlushStrategy::Fifo {
            add("pack.flush_strategy".into(), text(pack.flush_strategy.name()));
        }
        add("pack.pad_token_id".into(), pack.pad_token_id.map_or("unset".into(), |id| id.to_string()));
        add("pack.homogeneity".into(), text(pack.homogeneity.name()));
        if !pack.groups.is_empty() {
            add("pack.groups".into(), self.groups_text());
        }
        add("pack.long_documents".into(), text(pack.long_documents().name()));
        add("pack.labels_across_documents".into(), pack.labels_across_documents.to_string());
        add("shuffle.documents".into(), text(self.shuffle.documents.name()));
        add("shuffle.buffer_size".into(), self.shuffle.buffer_size.to_string());
        add("shuffle.seed".into(), self.shuffle_seed().to_string());
        add("batch.global_batch".into(), self.global_batch_text());
        add("batch.lanes".into(), self.schedule().map_or_else(|_| "unset".into(), |s| s.lanes().to_string()));
        add("batch.tail".into(), text(self.batch.tail.name()));
        if let Some(g) = &self.generate {
            add("generate.model_id".into(), text(&g.model_id));
            add("generate.model_cfg".into(), g.model_cfg.as_ref().map_or("unset".into(), toml));
            add("generate.layout".into(), layout_text(g));
            add("generate.batch_size".into(), g.batch_size.to_string());
            add("generate.input".into(), text(g.input.name()));
            if g.layout.is_ragged() {
                add("generate.pad_to".into(), pad_to_text(g.pad_to));
            }
        }
        add("functions".into(), list(&self.functions));
        fields
    }

    /// A hash of [`Recipe::fields`]: equal for recipes that give the same bytes from the same data and tokenizer.
    pub fn fingerprint(&self) -> u64 {
        let joined: Vec<String> = self.fields().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        twox_hash::XxHash3_64::oneshot(joined.join("\n").as_bytes())
    }

    /// The recipe as a TOML file that [`Recipe::parse`] reads back.
    pub fn to_toml(&self) -> String {
        let mut out = format!("seed = {}\n", self.seed);
        if !self.functions.is_empty() {
            let _ = writeln!(out, "functions = {}", list(&self.functions));
        }
        for d in &self.datasets {
            let _ = write!(out, "\n[[dataset]]\nname = {}\npaths = {}\n", text(&d.spec.name), list(&d.spec.paths));
            if let Some(format) = d.spec.format {
                let _ = writeln!(out, "format = {}", text(format.name()));
            }
            let _ = writeln!(out, "text_field = {}\ntext_unit = {}", text(&d.spec.text_field), text(d.spec.text_unit.name()));
            let _ = writeln!(out, "on_error = {}\nweight = {:?}", text(d.spec.on_error.name()), d.weight);
            let _ = writeln!(out, "exhausted = {}", text(d.exhausted.name()));
            if d.exhausted != Exhausted::Repeat {
                let _ = writeln!(out, "epochs = {}", d.epochs);
            }
        }
        let _ = write!(out, "\n[mixture]\nunit = {}\nschedule = {}\n", text(self.mixture.unit.name()), self.schedule_text());
        let t = &self.tokenizer;
        let _ = write!(out, "\n[tokenizer]\npath = {}\nspecial_tokens = {}\n", text(&t.path), text(t.special_tokens.name()));
        let _ = writeln!(out, "parse_special = {}", t.parse_special);
        for (name, token) in self.named_tokens() {
            let _ = writeln!(out, "{name} = {}", text(token));
        }
        let p = &self.pack;
        let _ = write!(out, "\n[pack]\nmax_length = {}\nalgorithm = {}\n", p.max_length, text(p.algorithm.name()));
        let _ = writeln!(out, "num_bins = {}\ncandidate_pool_size = {}", p.num_bins, p.candidate_pool_size);
        if let Some(most) = p.max_sequences_per_bin {
            let _ = writeln!(out, "max_sequences_per_bin = {most}");
        }
        let _ = writeln!(out, "min_sequence_length = {}\nflush_strategy = {}", p.min_sequence_length, text(p.flush_strategy.name()));
        if let Some(id) = p.pad_token_id {
            let _ = writeln!(out, "pad_token_id = {id}");
        }
        let _ = writeln!(out, "homogeneity = {}", text(p.homogeneity.name()));
        if !p.groups.is_empty() {
            let _ = writeln!(out, "groups = {}", self.groups_text());
        }
        let _ = writeln!(out, "long_documents = {}", text(p.long_documents().name()));
        let _ = writeln!(out, "labels_across_documents = {}", p.labels_across_documents);
        let s = &self.shuffle;
        let _ = write!(out, "\n[shuffle]\ndocuments = {}\nbuffer_size = {}\n", text(s.documents.name()), s.buffer_size);
        let _ = writeln!(out, "seed = {}", self.shuffle_seed());
        let _ = writeln!(out, "\n[batch]\nglobal_batch = {}", self.global_batch_text());
        if let Some(lanes) = self.batch.lanes {
            let _ = writeln!(out, "lanes = {lanes}");
        }
        let _ = writeln!(out, "tail = {}", text(self.batch.tail.name()));
        if let Some(g) = &self.generate {
            let _ = write!(out, "\n[generate]\nmodel_id = {}\n", text(&g.model_id));
            if let Some(cfg) = &g.model_cfg {
                let _ = writeln!(out, "model_cfg = {}", toml(cfg));
            }
            let _ = writeln!(out, "layout = {}\nbatch_size = {}\ninput = {}", layout_text(g), g.batch_size, text(g.input.name()));
            if g.layout.is_ragged() {
                let _ = writeln!(out, "pad_to = {}", pad_to_text(g.pad_to));
            }
        }
        out
    }

    fn named_tokens(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let t = &self.tokenizer;
        let all = [("bos_token", &t.bos_token), ("eos_token", &t.eos_token), ("pad_token", &t.pad_token)];
        all.into_iter().filter_map(|(name, token)| token.as_deref().map(|token| (name, token)))
    }

    fn schedule_text(&self) -> String {
        let entry = |(step, weights): &(u64, Vec<f64>)| {
            let named: Vec<String> = self.datasets.iter().zip(weights).map(|(d, w)| format!("{} = {w:?}", text(&d.spec.name))).collect();
            format!("{{ from_step = {step}, weights = {{ {} }} }}", named.join(", "))
        };
        format!("[{}]", self.mixture.schedule.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    fn groups_text(&self) -> String {
        let groups: Vec<String> = self.pack.groups.iter().map(|(name, members)| format!("{} = {}", text(name), list(members))).collect();
        format!("{{ {} }}", groups.join(", "))
    }

    fn global_batch_text(&self) -> String {
        match self.batch.global_batch.pairs() {
            [(0, value)] => value.to_string(),
            pairs => format!("[{}]", pairs.iter().map(|(step, value)| format!("[{step}, {value}]")).collect::<Vec<_>>().join(", ")),
        }
    }
}
