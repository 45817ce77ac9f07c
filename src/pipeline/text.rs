//! The work of text pipelines: read, apply user functions, tokenize.

use super::map::{Applied, Function};
use super::tokenize::{Encoder, Tokenizer};
use super::work::{Fate, Made, Request, Window, Work, Worker};
use crate::base::{Error, Result};
use crate::data::{Dataset, DocBatch, DocStatus, Reader};

/// Datasets, a tokenizer, and the functions between them.
pub struct TextWork {
    datasets: Vec<Dataset>,
    tokenizer: Tokenizer,
    functions: Vec<Function>,
}

impl TextWork {
    /// Reads from `datasets`, in the recipe's order.
    pub fn new(datasets: Vec<Dataset>, tokenizer: Tokenizer, functions: Vec<Function>) -> TextWork {
        TextWork { datasets, tokenizer, functions }
    }
}

impl Work for TextWork {
    fn worker(&self) -> Result<Box<dyn Worker>> {
        Ok(Box::new(TextWorker {
            singly: self.datasets.iter().map(Dataset::reads_singly).collect(),
            readers: self.datasets.iter().map(Dataset::reader).collect(),
            datasets: self.datasets.clone(),
            batch: DocBatch::new(),
            encoder: self.tokenizer.encoder(),
            functions: self.functions.clone(),
            applied: Applied::default(),
        }))
    }
}

struct TextWorker {
    /// To locate documents in.
    datasets: Vec<Dataset>,
    readers: Vec<Reader>,
    /// Of each dataset: whether documents are as cheap to read one by one as together.
    singly: Vec<bool>,
    batch: DocBatch,
    encoder: Encoder,
    functions: Vec<Function>,
    applied: Applied,
}

impl Worker for TextWorker {
    fn make(&mut self, request: &Request<'_>, out: &mut Made) -> Result<()> {
        match request.window.filter(|w| !self.singly[request.source] || w.documents.end - w.documents.start == request.documents.len() as u64) {
            Some(window) => {
                let text = self.window(request.source, window)?;
                for document in request.documents {
                    let i = (document - window.documents.start) as usize;
                    tokens(&mut self.encoder, &self.functions, &mut self.applied, (text.text(i), text.status(i)), out)
                        .map_err(|e| located(&self.datasets[request.source], *document, e))?;
                }
            }
            None => {
                for document in request.documents {
                    self.readers[request.source].read(*document..document + 1, &mut self.batch)?;
                    let batch = &self.batch;
                    tokens(&mut self.encoder, &self.functions, &mut self.applied, (batch.text(0), batch.status(0)), out)
                        .map_err(|e| located(&self.datasets[request.source], *document, e))?;
                }
            }
        }
        Ok(())
    }
}

impl TextWorker {
    /// The text of a window: read once, by whoever needs it first.
    fn window<'w>(&mut self, source: usize, window: &'w Window) -> Result<&'w DocBatch> {
        if let Some(text) = window.text.get() {
            return Ok(text);
        }
        let _reading = window.reading.lock().unwrap_or_else(|e| e.into_inner());
        if window.text.get().is_none() {
            let mut text = DocBatch::new();
            self.readers[source].read(window.documents.clone(), &mut text)?;
            let _ = window.text.set(text);
        }
        Ok(window.text.get().expect("set above"))
    }
}

/// An error of a function or of the tokenizer, with the place of the document that it is about.
#[cold]
fn located(dataset: &Dataset, document: u64, error: Error) -> Error {
    let place = dataset.locate(document).map_or_else(|_| format!("document {document}"), |location| location.to_string());
    error.within(format!("dataset '{}': {place}", dataset.name()))
}

/// One document's tokens, or why it has none.
fn tokens(encoder: &mut Encoder, functions: &[Function], applied: &mut Applied, (text, status): (&str, DocStatus), out: &mut Made) -> Result<()> {
    if let DocStatus::Skipped(reason) = status {
        out.leave_out(Fate::Skipped(reason));
        return Ok(());
    }
    match applied.run(functions, text)? {
        None => out.leave_out(Fate::Filtered),
        // Also where a tokenizer would put control tokens around nothing.
        Some("") => out.leave_out(Fate::Empty),
        Some(text) => {
            encoder.encode_into(text, &mut out.tokens)?;
            out.close()?;
        }
    }
    Ok(())
}
