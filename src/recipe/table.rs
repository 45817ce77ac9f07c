//! TOML tables read strictly: every value has its line, every key that nobody asked for is an error with a suggestion.

use crate::base::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A table and where it stands in the file.
pub(super) struct Table<'a> {
    text: &'a str,
    /// As in `mixture.schedule[0]`; empty for the file itself.
    path: String,
    /// Where it starts.
    start: usize,
    table: &'a DeTable<'a>,
    asked: Vec<&'static str>,
}

/// A value and where it stands.
pub(super) struct Value<'a> {
    text: &'a str,
    path: String,
    value: &'a Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    pub fn new(text: &'a str, table: &'a DeTable<'a>) -> Table<'a> {
        Table { text, path: String::new(), start: 0, table, asked: Vec::new() }
    }

    /// The value of `key`, if it is there.
    pub fn get(&mut self, key: &'static str) -> Option<Value<'a>> {
        self.asked.push(key);
        let value = self.table.get(key)?;
        Some(Value { text: self.text, path: join(&self.path, key), value })
    }

    /// The value of `key`, or an error that says that it is missing.
    pub fn need(&mut self, key: &'static str) -> Result<Value<'a>> {
        self.get(key).ok_or_else(|| {
            // A key that is nearly this one is what was meant.
            if let Some((misspelt, _)) = self.table.iter().find(|(k, _)| !self.asked.contains(&k.get_ref().as_ref()) && is_near(k.get_ref(), key)) {
                return self.unknown(misspelt, &format!("did you mean '{key}'?"));
            }
            Error::invalid(match self.path.as_str() {
                "" => format!("the recipe lacks '{key}'"),
                path => format!("line {}: {path} lacks '{key}'", line(self.text, self.start..self.start)),
            })
        })
    }

    /// The table of that name, empty if it is not there.
    pub fn table(&mut self, key: &'static str) -> Result<Option<Table<'a>>> {
        self.get(key).map(|v| v.table()).transpose()
    }

    /// An error for the first key that was not asked for.
    pub fn finish(self) -> Result<()> {
        for (key, _) in self.table.iter() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                let hint = match nearest(name, &self.asked) {
                    Some(near) => format!("did you mean '{near}'?"),
                    None => format!("known here: {}", self.asked.join(", ")),
                };
                return Err(self.unknown(key, &hint));
            }
        }
        Ok(())
    }

    fn unknown(&self, key: &Spanned<Cow<'_, str>>, hint: &str) -> Error {
        Error::invalid(format!("line {}: '{}' is not known; {hint}", line(self.text, key.span()), join(&self.path, key.get_ref())))
    }

    /// All keys with their values, for tables whose keys are names given by the user.
    pub fn entries(&self) -> Vec<(String, Value<'a>)> {
        let entry = |(key, value): (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>)| {
            let name = key.get_ref().to_string();
            (name.clone(), Value { text: self.text, path: join(&self.path, &name), value })
        };
        self.table.iter().map(entry).collect()
    }
}

impl<'a> Value<'a> {
    /// An error about this value: `line 3: pack.max_length is …; <expected>`.
    pub fn wrong(&self, expected: &str) -> Error {
        let shown = self.text.get(self.value.span()).unwrap_or("…");
        let shown = if shown.len() > 40 || shown.contains('\n') { self.value.get_ref().type_str() } else { shown };
        Error::invalid(format!("line {}: {} is {shown}; expected {expected}", line(self.text, self.value.span()), self.path))
    }

    /// `error`, with line and name in front.
    pub fn at(&self, error: Error) -> Error {
        error.within(format!("line {}: {}", line(self.text, self.value.span()), self.path))
    }

    pub fn str(&self) -> Result<&'a str> {
        self.value.get_ref().as_str().ok_or_else(|| self.wrong("a string"))
    }

    pub fn bool(&self) -> Result<bool> {
        self.value.get_ref().as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    pub fn u64(&self) -> Result<u64> {
        let integer = self.value.get_ref().as_integer();
        let number = integer.and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        number.ok_or_else(|| match integer {
            Some(n) if !n.as_str().starts_with('-') => self.wrong("a whole number below 2^64"),
            _ => self.wrong("a whole number, 0 or above"),
        })
    }

    pub fn u32(&self) -> Result<u32> {
        u32::try_from(self.u64()?).map_err(|_| self.wrong("a whole number below 2^32"))
    }

    pub fn f64(&self) -> Result<f64> {
        let value = self.value.get_ref();
        let number = match (value.as_float(), value.as_integer()) {
            (Some(f), _) => f.as_str().parse().ok(),
            (_, Some(n)) => n.as_str().parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.wrong("a number"))
    }

    /// A word of a list of choices.
    pub fn word<T>(&self, from_name: impl Fn(&str) -> Result<T>) -> Result<T> {
        from_name(self.str()?).map_err(|e| self.at(e))
    }

    pub fn list(&self) -> Result<Vec<Value<'a>>> {
        let list = self.value.get_ref().as_array().ok_or_else(|| match self.value.get_ref() {
            DeValue::Table(_) => self.wrong(&format!("a list: write [[{0}]] instead of [{0}]", self.path)),
            _ => self.wrong("a list"),
        })?;
        Ok(list.iter().enumerate().map(|(i, value)| Value { text: self.text, path: format!("{}[{i}]", self.path), value }).collect())
    }

    /// A list of strings.
    pub fn strings(&self) -> Result<Vec<String>> {
        self.list()?.iter().map(|v| v.str().map(String::from)).collect()
    }

    pub fn table(&self) -> Result<Table<'a>> {
        let table = self.value.get_ref().as_table().ok_or_else(|| self.wrong("a table"))?;
        Ok(Table { text: self.text, path: self.path.clone(), start: self.value.span().start, table, asked: Vec::new() })
    }

    /// The same value as JSON. Integers stay exact; what JSON has no form for is an error.
    pub fn json(&self) -> Result<serde_json::Value> {
        let value = self.value.get_ref();
        Ok(match value {
            DeValue::String(s) => s.as_ref().into(),
            DeValue::Boolean(b) => (*b).into(),
            DeValue::Integer(n) => i64::from_str_radix(n.as_str(), n.radix()).map_err(|_| self.wrong("a whole number of 64 bits"))?.into(),
            DeValue::Float(_) => serde_json::Number::from_f64(self.f64()?).ok_or_else(|| self.wrong("a finite number"))?.into(),
            DeValue::Array(_) => self.list()?.iter().map(Value::json).collect::<Result<Vec<_>>>()?.into(),
            DeValue::Table(_) => {
                let entries = self.table()?.entries();
                serde_json::Value::Object(entries.into_iter().map(|(name, v)| Ok((name, v.json()?))).collect::<Result<_>>()?)
            }
            DeValue::Datetime(_) => return Err(self.wrong("a string, a number, true or false, a list or a table")),
        })
    }

    pub fn is_list(&self) -> bool {
        self.value.get_ref().is_array()
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.into() } else { format!("{path}.{key}") }
}

fn line(text: &str, span: Range<usize>) -> usize {
    text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// The known word that is nearest to `word`, if it is near enough to be what was meant.
fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let best = known.iter().copied().min_by_key(|k| distance(word, k))?;
    is_near(word, best).then_some(best)
}

fn is_near(word: &str, known: &str) -> bool {
    distance(word, known) <= 1 + known.len().max(word.len()) / 4
}

/// Edit distance (Levenshtein), a swap of neighbours counting as two.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let cost = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], cost);
        }
    }
    row[b.len()]
}
