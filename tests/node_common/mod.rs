//! A recipe to serve, and what an in-process loader makes of it.
#![allow(dead_code, reason = "each test program uses its own part")]

use crate::lanes_common::byte_tokenizer;
use laneway::loader::node::{ConnectOptions, NodeLoader, Server, ServerOptions};
use laneway::loader::{Loader, Options};
use laneway::pipeline::Function;
use laneway::recipe::Recipe;
use std::time::Duration;
use tempfile::TempDir;

const RECIPE: &str = r#"
seed = 3
[[dataset]]
name = "notes"
paths = "notes.txt"
[tokenizer]
path = "tokenizer.json"
[pack]
max_length = 64
[shuffle]
buffer_size = 64
[batch]
global_batch = 8
"#;

/// A folder with a dataset, a tokenizer and a recipe. Servers are named after this process, so that tests may run at the same time.
pub struct House {
    dir: TempDir,
}

impl House {
    pub fn new() -> House {
        let dir = TempDir::new().unwrap();
        byte_tokenizer(dir.path());
        std::fs::write(dir.path().join("notes.txt"), (0..500).map(|n| format!("note {n} {}\n", "la ".repeat(n * 7 % 20))).collect::<String>())
            .unwrap();
        std::fs::write(dir.path().join("recipe.toml"), RECIPE).unwrap();
        House { dir }
    }

    /// The recipe's file.
    pub fn recipe_path(&self) -> std::path::PathBuf {
        self.dir.path().join("recipe.toml")
    }

    pub fn recipe(&self) -> Recipe {
        Recipe::load(&self.recipe_path()).unwrap()
    }

    pub fn tuning(&self) -> Options {
        Options { threads: 1, cache_dir: Some(self.dir.path().join("cache")), ..Options::default() }
    }

    /// Names functions in the recipe, which [`House::serve_with`] gives to the server.
    pub fn functions(&mut self, names: &[&str]) {
        std::fs::write(self.recipe_path(), format!("functions = {names:?}\n{RECIPE}")).unwrap();
    }

    pub fn serve(&self, name: &str, change: impl FnOnce(&mut ServerOptions)) -> Server {
        self.serve_with(name, change, &[])
    }

    pub fn serve_with(&self, name: &str, change: impl FnOnce(&mut ServerOptions), functions: &[Function]) -> Server {
        let mut options = ServerOptions { name: named(name), loader: self.tuning(), ..ServerOptions::default() };
        change(&mut options);
        Server::start(self.recipe(), options, functions, &[]).unwrap()
    }

    pub fn connect(&self, name: &str, rank: u32, ranks: u32) -> NodeLoader {
        let options = ConnectOptions { name: named(name), rank, ranks, patience: Duration::from_secs(60), ..ConnectOptions::default() };
        NodeLoader::connect(options, Some(&self.recipe())).unwrap()
    }
}

/// The name of this test program's server of that name.
pub fn named(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// All rows of the first batches of a rank.
pub fn hashes(house: &House, rank: u32, ranks: u32, batches: usize) -> Vec<u64> {
    let mut loader = Loader::open(house.recipe(), Options { rank, ranks, ..house.tuning() }, &[]).unwrap();
    (0..batches).flat_map(|_| loader.next(None).unwrap().unwrap().row_hashes()).collect()
}
