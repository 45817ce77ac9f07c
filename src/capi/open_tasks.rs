//! What the pointers in an `lw_task` point to, for as long as they must stay valid.

use super::layout::lw_layout;
use super::student::device_flag;
use super::worker::lw_task;
use crate::base::{Error, Layout, Result, Status};
use crate::exchange::message::Model;
use crate::exchange::worker::{Input, Task};
use crate::medium::Place;
use std::collections::HashMap;
use std::ffi::c_char;
use std::ptr;
use std::sync::Arc;

/// A model's texts with a NUL behind each.
struct ModelText {
    /// Held so that its address, by which it is found again, is not given to another.
    model: Arc<Model>,
    id: Vec<u8>,
    config: Option<Vec<u8>>,
}

impl ModelText {
    fn new(model: &Arc<Model>) -> ModelText {
        let terminated = |text: &str| [text.as_bytes(), b"\0"].concat();
        ModelText { model: Arc::clone(model), id: terminated(&model.id), config: model.config.as_deref().map(terminated) }
    }
}

struct Open {
    model: Arc<ModelText>,
    layout: Arc<lw_layout>,
    place: Place,
    /// What the ticket carries, and how it lies.
    input: Option<(Arc<lw_layout>, Input)>,
}

/// The open tasks of one worker.
#[derive(Default)]
pub(super) struct OpenTasks {
    open: HashMap<u64, Open>,
    /// The last model: nearly always the next task's, too.
    model: Option<Arc<ModelText>>,
    /// Every layout seen, the last used in front: there are as many as kinds of students, and tasks point to them.
    layouts: Vec<Arc<lw_layout>>,
}

impl OpenTasks {
    /// Opens a task and gives C's form of it.
    pub(super) fn add(&mut self, task: &Task) -> Result<lw_task> {
        let input = task.input.as_ref().map(|i| Ok::<_, Error>((self.layout_for(&i.layout)?, i.clone()))).transpose()?;
        let (model, layout, place) = (self.model_text(&task.model), self.layout_for(&task.layout)?, task.place);
        let text = |bytes: &Vec<u8>| (bytes.as_ptr().cast::<c_char>(), bytes.len() - 1);
        let (model_id, model_id_len) = text(&model.id);
        let (model_config, model_config_len) = model.config.as_ref().map_or((ptr::null(), 0), text);
        let id = task.id;
        let task = lw_task {
            data: task.data.cast(),
            capacity: task.capacity as u64,
            id: task.id,
            lane: task.lane,
            step: task.step,
            seed: task.seed,
            generation: task.generation,
            model_id,
            model_id_len,
            model_config,
            model_config_len,
            layout: Arc::as_ptr(&layout),
            attempt: task.attempt,
            flags: device_flag(task.place),
        };
        self.open.insert(id, Open { model, layout, place, input });
        Ok(task)
    }

    fn model_text(&mut self, model: &Arc<Model>) -> Arc<ModelText> {
        match &self.model {
            Some(text) if Arc::ptr_eq(&text.model, model) => Arc::clone(text),
            _ => Arc::clone(self.model.insert(Arc::new(ModelText::new(model)))),
        }
    }

    fn layout_for(&mut self, layout: &Arc<Layout>) -> Result<Arc<lw_layout>> {
        let same = |l: &Arc<lw_layout>| Arc::ptr_eq(&l.layout, layout) || l.layout == *layout;
        let i = match self.layouts.iter().position(same) {
            Some(i) => i,
            None => {
                self.layouts.push(Arc::new(lw_layout::new(Arc::clone(layout))?));
                self.layouts.len() - 1
            }
        };
        self.layouts.swap(0, i);
        Ok(Arc::clone(&self.layouts[0]))
    }

    fn get(&self, id: u64) -> Result<&Open> {
        self.open.get(&id).ok_or_else(|| Error::invalid(format!("task {id} is not open; it was committed or failed before, or is not this worker's")))
    }

    /// The layout of an open task, and where its memory is.
    pub(super) fn layout_and_place(&self, id: u64) -> Result<(Arc<lw_layout>, Place)> {
        self.get(id).map(|open| (Arc::clone(&open.layout), open.place))
    }

    /// The model of an open task.
    pub(super) fn model(&self, id: u64) -> Result<Arc<Model>> {
        self.get(id).map(|open| Arc::clone(&open.model.model))
    }

    /// What the ticket of an open task carries.
    pub(super) fn input(&self, id: u64) -> Result<Option<(Arc<lw_layout>, Input)>> {
        self.get(id).map(|open| open.input.clone())
    }

    /// That these tasks are on a device, where streams are.
    pub(super) fn check_on_device(&self, ids: impl Iterator<Item = u64>) -> Result<()> {
        for id in ids {
            if self.get(id)?.place == Place::Host {
                let message = format!("a stream was given, and task {id} is in host memory: synchronize the stream and pass NULL");
                return Err(Error::new(Status::Unsupported, message));
            }
        }
        Ok(())
    }

    /// Bytes of all tensors of an open task.
    pub(super) fn nbytes(&self, id: u64) -> Result<usize> {
        self.get(id).map(|open| open.layout.layout.nbytes())
    }

    /// Closes all these tasks, each of which `check` gets with its index and bytes; or, if one is not open, is named twice, or does not pass, none.
    pub(super) fn close_all(&mut self, ids: impl IntoIterator<Item = u64>, mut check: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
        let mut closed = Vec::new();
        for (i, id) in ids.into_iter().enumerate() {
            let outcome = self.nbytes(id).and_then(|nbytes| check(i, nbytes));
            if let Err(error) = outcome {
                self.open.extend(closed);
                return Err(error);
            }
            closed.extend(self.open.remove_entry(&id));
        }
        Ok(())
    }
}
