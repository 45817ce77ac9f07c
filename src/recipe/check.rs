//! What makes a recipe impossible, whatever the data: an error names the field, its value and what is allowed.
//!
//! An option that others leave without effect is refused, since whoever set it meant something; unless it has its default value, which says nothing. (How many datasets there
//! are, and whether they end, is data: a weight beside no other, or a `tail` that never comes, is no mistake.)

use super::*;

impl Recipe {
    /// Checks what does not depend on the data: an error names the field, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        if self.datasets.is_empty() {
            return Err(Error::invalid("a recipe needs at least one [[dataset]]"));
        }
        let count = self.datasets.len();
        if count > usize::from(u16::MAX) {
            return Err(Error::invalid(format!("{count} datasets; at most {} are allowed", u16::MAX)));
        }
        for (i, dataset) in self.datasets.iter().enumerate() {
            let name = &dataset.spec.name;
            if name.is_empty() {
                return Err(Error::invalid(format!("dataset {i} has an empty name")));
            }
            if self.datasets[..i].iter().any(|d| d.spec.name == *name) {
                return Err(Error::invalid(format!("two datasets are called '{name}'; names must differ")));
            }
            if dataset.epochs == 0 {
                return Err(Error::invalid(format!("dataset '{name}': epochs is 0; it must be at least 1")));
            }
        }
        self.weights()?;
        let mut last = 0;
        for (step, weights) in &self.mixture.schedule {
            if *step <= last {
                return Err(Error::invalid(format!("mixture.schedule: from_step {step} must be above {last}, where the weights before it start")));
            }
            if weights.len() != count {
                return Err(Error::invalid(format!("mixture.schedule from step {step} has {} weights for {count} datasets", weights.len())));
            }
            last = *step;
        }
        let pack = &self.pack;
        for (field, value, least) in
            [("max_length", pack.max_length, 2), ("num_bins", pack.num_bins, 1), ("candidate_pool_size", pack.candidate_pool_size, 1)]
        {
            if value < least || value > 1 << 30 {
                return Err(Error::invalid(format!("pack.{field} is {value}; it must be from {least} to {}", 1 << 30)));
            }
        }
        if pack.max_sequences_per_bin == Some(0) {
            return Err(Error::invalid("pack.max_sequences_per_bin is 0; it must be 1 or above, or not be given"));
        }
        if pack.min_sequence_length == 0 || pack.min_sequence_length > pack.max_length {
            let (least, most) = (pack.min_sequence_length, pack.max_length);
            return Err(Error::invalid(format!("pack.min_sequence_length is {least}; it must be from 1 to max_length, which is {most}")));
        }
        self.check_effect()?;
        self.check_groups()?;
        self.schedule().map_err(|e| e.within("batch"))?;
        self.generate.as_ref().map_or(Ok(()), GenerateRecipe::check)
    }

    /// Refuses what is set and means nothing beside the other options.
    fn check_effect(&self) -> Result<()> {
        for dataset in &self.datasets {
            let name = &dataset.spec.name;
            dataset.spec.check_effect().map_err(|e| e.within(format!("dataset '{name}'")))?;
            if dataset.exhausted == Exhausted::Repeat && dataset.epochs != 1 {
                let hint = "set exhausted = \"stop\" or \"redistribute\" to end it, or leave epochs out";
                return Err(Error::invalid(format!("dataset '{name}': epochs is {}, and it repeats for ever; {hint}", dataset.epochs)));
            }
        }
        let (pack, default) = (&self.pack, PackRecipe::new(self.pack.max_length));
        let (fits, pool, shared) = ("first_fit and best_fit", "best_fit_wrap", "algorithms that put several documents into a row");
        for (field, set, of) in [
            ("num_bins", pack.num_bins != default.num_bins, fits),
            ("min_sequence_length", pack.min_sequence_length != default.min_sequence_length, fits),
            ("flush_strategy", pack.flush_strategy != default.flush_strategy, fits),
            ("candidate_pool_size", pack.candidate_pool_size != default.candidate_pool_size, pool),
            ("max_sequences_per_bin", pack.max_sequences_per_bin.is_some(), shared),
            ("homogeneity", pack.homogeneity != default.homogeneity, shared),
            ("labels_across_documents", pack.labels_across_documents, shared),
        ] {
            let has = match pack.algorithm {
                Algorithm::Wrap => of == shared,
                Algorithm::FirstFit | Algorithm::BestFit => of == fits || of == shared,
                Algorithm::BestFitWrap => of == pool || of == shared,
                Algorithm::None => false,
            };
            if set && !has {
                return Err(Error::invalid(format!("pack.{field} belongs to {of}, not to {}; leave it out", pack.algorithm.name())));
            }
        }
        if let Some(seed) = self.shuffle.seed.filter(|seed| self.shuffle.buffer_size == 0 && *seed != self.seed) {
            let hint = "leave it out (the order of documents is the recipe's seed's), or set buffer_size";
            return Err(Error::invalid(format!("shuffle.seed is {seed}, and with buffer_size = 0 no rows are shuffled; {hint}")));
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<()> {
        let pack = &self.pack;
        if pack.homogeneity != Homogeneity::Group {
            return match pack.groups.is_empty() {
                true => Ok(()),
                false => Err(Error::invalid(format!("pack.groups needs homogeneity = \"group\"; it is \"{}\"", pack.homogeneity.name()))),
            };
        }
        let names: Vec<&str> = self.datasets.iter().map(|d| d.spec.name.as_str()).collect();
        if pack.groups.is_empty() {
            let example = names[0];
            return Err(Error::invalid(format!(
                "pack.homogeneity is \"group\" and there are no groups; name them, as in groups = {{ mine = [\"{example}\"] }}"
            )));
        }
        for (group, members) in &pack.groups {
            if let Some(member) = members.iter().find(|m| !names.contains(&m.as_str())) {
                let known = names.join(", ");
                return Err(Error::invalid(format!("pack.groups.{group} names '{member}', which is not a dataset; datasets are {known}")));
            }
        }
        for name in names {
            match pack.groups.iter().filter(|(_, members)| members.iter().any(|m| m == name)).count() {
                1 => {}
                0 => return Err(Error::invalid(format!("pack.groups: dataset '{name}' is in none; name every dataset once"))),
                n => return Err(Error::invalid(format!("pack.groups: dataset '{name}' is in {n} groups; name every dataset once"))),
            }
        }
        Ok(())
    }
}

impl GenerateRecipe {
    fn check(&self) -> Result<()> {
        if self.batch_size == 0 || self.batch_size > 4096 {
            return Err(Error::invalid(format!("generate.batch_size is {}; it must be from 1 to 4096", self.batch_size)));
        }
        match self.pad_to {
            PadTo::Longest => {}
            _ if !self.layout.is_ragged() => {
                return Err(Error::invalid("generate.pad_to is for ragged dimensions, \"seq<=2048\" say, and generate.layout has none"));
            }
            PadTo::Multiple(0 | 65_537..) => return Err(Error::invalid("generate.pad_to as a number must be from 1 to 65536")),
            _ => {}
        }
        if self.layout.nbytes() == 0 {
            return Err(Error::invalid("generate.layout: its tensors have no bytes, so nothing could be made"));
        }
        let taken = |name: &str| BATCH_TENSORS.contains(&name);
        if let Some(spec) = self.layout.specs().iter().find(|s| taken(&s.name)) {
            return Err(Error::invalid(format!("generate.layout: a batch has a '{}' already; give the teacher's tensor another name", spec.name)));
        }
        for (dim, _) in self.layout.dims() {
            if let Some(name) = ragged_tensors(dim).into_iter().find(|name| taken(name) || self.layout.find(name).is_some()) {
                return Err(Error::invalid(format!(
                    "generate.layout: a batch has a '{name}' already, which dimension '{dim}' would bring; give the dimension another name"
                )));
            }
        }
        Ok(())
    }
}
