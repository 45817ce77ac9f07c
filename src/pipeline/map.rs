//! User functions on a document's text, before it becomes tokens. They run on many threads, in any order, and again after
//! a restore: they must be pure, giving the same for the same text.

use crate::base::Result;
use std::sync::Arc;

/// What a function does to a text. An error fails the run at the row that needs the document.
#[derive(Clone)]
pub enum TextFunction {
    /// Appends the new text to the string, which is empty.
    Map(Arc<dyn Fn(&str, &mut String) -> Result<()> + Send + Sync>),
    /// Whether the document is kept.
    Filter(Arc<dyn Fn(&str) -> Result<bool> + Send + Sync>),
}

/// A function and the name, with its version, by which a recipe knows it: `"clean 2"`.
#[derive(Clone)]
pub struct Function {
    /// Changed by its author whenever it would do anything else than before.
    pub name: String,
    /// What it does.
    pub function: TextFunction,
}

/// Runs functions one after the other, in buffers that are used again.
#[derive(Default)]
pub(super) struct Applied {
    from: String,
    to: String,
}

impl Applied {
    /// The text after all functions, or `None` if one of them left it out.
    pub fn run<'a>(&'a mut self, functions: &[Function], text: &'a str) -> Result<Option<&'a str>> {
        let mut mapped = false;
        for f in functions {
            let now = if mapped { self.from.as_str() } else { text };
            match &f.function {
                TextFunction::Filter(keep) => {
                    if !keep(now).map_err(|e| e.within(format!("function '{}'", f.name)))? {
                        return Ok(None);
                    }
                }
                TextFunction::Map(map) => {
                    self.to.clear();
                    map(now, &mut self.to).map_err(|e| e.within(format!("function '{}'", f.name)))?;
                    std::mem::swap(&mut self.from, &mut self.to);
                    mapped = true;
                }
            }
        }
        Ok(Some(if mapped { &self.from } else { text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Error;

    fn map(f: impl Fn(&str) -> String + Send + Sync + 'static) -> Function {
        let function = TextFunction::Map(Arc::new(move |text, out| {
            out.push_str(&f(text));
            Ok(())
        }));
        Function { name: "m 1".into(), function }
    }

    #[test]
    fn functions_run_in_order_and_a_filter_sees_what_came_before() {
        let long = Function { name: "long 1".into(), function: TextFunction::Filter(Arc::new(|t| Ok(t.len() > 3))) };
        let all = [map(str::to_uppercase), map(|t| format!("{t}!")), long];
        let mut applied = Applied::default();
        assert_eq!(applied.run(&all, "abc").unwrap(), Some("ABC!"));
        assert_eq!(applied.run(&all, "ab").unwrap(), None);
        assert_eq!(applied.run(&[], "ab").unwrap(), Some("ab"));
        let bad = Function { name: "bad 3".into(), function: TextFunction::Filter(Arc::new(|_| Err(Error::invalid("no")))) };
        assert_eq!(applied.run(&[bad], "x").unwrap_err().message, "function 'bad 3': no");
    }
}
