//! Either kind of loader: the one whose pipeline runs in this process, or the one whose batches another process makes.

use super::Loader;
use super::about::{self, About};
use super::node::NodeLoader;
use crate::base::Result;
use crate::pipeline::{Batch, Checkpoint};
use crate::plan::BatchSchedule;
use crate::recipe::Recipe;
use serde_json::{Map, Value};
use std::time::Instant;

/// Either kind; the same batches and the same states.
pub enum AnyLoader {
    /// Its pipeline runs here.
    Own(Box<Loader>),
    /// A server makes its batches.
    Node(Box<NodeLoader>),
}

impl AnyLoader {
    /// See [`Loader::next`].
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Batch>> {
        match self {
            AnyLoader::Own(loader) => loader.next(deadline),
            AnyLoader::Node(loader) => loader.next(deadline),
        }
    }

    /// See [`Loader::save`].
    pub fn save(&mut self) -> Result<Checkpoint> {
        match self {
            AnyLoader::Own(loader) => Ok(loader.save()),
            AnyLoader::Node(loader) => loader.save(),
        }
    }

    /// See [`Loader::load`].
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        match self {
            AnyLoader::Own(loader) => loader.load(checkpoint),
            AnyLoader::Node(loader) => loader.load(checkpoint),
        }
    }

    /// See [`Loader::seek`].
    pub fn seek(&mut self, step: u64) -> Result<()> {
        match self {
            AnyLoader::Own(loader) => loader.seek(step),
            AnyLoader::Node(loader) => loader.seek(step),
        }
    }

    /// See [`Loader::set_mixture`].
    pub fn set_mixture(&mut self, weights: Vec<f64>, from_step: u64) -> Result<()> {
        match self {
            AnyLoader::Own(loader) => loader.set_mixture(weights, from_step),
            AnyLoader::Node(loader) => loader.set_mixture(weights, from_step),
        }
    }

    /// See [`Loader::set_model`].
    pub fn set_model(&mut self, model_id: &str, model_cfg: Option<Value>, from_step: u64) -> Result<()> {
        match self {
            AnyLoader::Own(loader) => loader.set_model(model_id, model_cfg, from_step),
            AnyLoader::Node(loader) => loader.set_model(model_id, model_cfg, from_step),
        }
    }

    /// See [`Loader::steps`].
    pub fn steps(&mut self) -> Result<Option<u64>> {
        match self {
            AnyLoader::Own(loader) => loader.steps(),
            AnyLoader::Node(loader) => loader.steps(),
        }
    }

    /// See [`Loader::step`].
    pub fn step(&self) -> u64 {
        match self {
            AnyLoader::Own(loader) => loader.step(),
            AnyLoader::Node(loader) => loader.step(),
        }
    }

    /// The recipe.
    pub fn recipe(&self) -> &Recipe {
        match self {
            AnyLoader::Own(loader) => loader.recipe(),
            AnyLoader::Node(loader) => loader.recipe(),
        }
    }

    /// Lanes and rows of every step.
    pub fn schedule(&self) -> &BatchSchedule {
        match self {
            AnyLoader::Own(loader) => loader.schedule(),
            AnyLoader::Node(loader) => loader.schedule(),
        }
    }

    /// What it is at its next step.
    pub fn info(&self) -> Value {
        match self {
            AnyLoader::Own(loader) => About::of(loader.parts()).at(loader.recipe(), loader.schedule(), loader.rank(), loader.step()),
            AnyLoader::Node(loader) => loader.info(),
        }
    }

    /// What its pipeline has done.
    pub fn stats(&mut self) -> Result<Map<String, Value>> {
        match self {
            AnyLoader::Own(loader) => loader.stats().map(|s| about::stats(&s)),
            AnyLoader::Node(loader) => loader.stats(),
        }
    }

    /// See [`Loader::explain`].
    pub fn explain(&mut self) -> Result<String> {
        match self {
            AnyLoader::Own(loader) => Ok(loader.explain()),
            AnyLoader::Node(loader) => loader.explain(),
        }
    }
}
