//! The Rust examples run as their first lines say. (Those in C and C++ are run by ctest, those in Python by pytest.)

mod built;

use std::process::Command;

#[test]
fn distill_min_learns() {
    let dir = std::env::temp_dir().join(format!("laneway-example-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let out = Command::new(built::example("distill_min")).env("LANEWAY_DIR", &dir).env("LANEWAY_BIN", built::program()).output();
    let _ = std::fs::remove_dir_all(&dir);
    let out = out.unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("step 2000  loss 0.0000"), "{out:?}");
}

#[test]
fn elastic_min_sees_the_same_batches_on_two_ranks() {
    let cache = std::env::temp_dir().join(format!("laneway-example-cache-{}", std::process::id()));
    let recipe = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes/documentation.toml");
    let out = Command::new(built::example("elastic_min")).arg(recipe).arg("20").env("LANEWAY_CACHE", &cache).output();
    let _ = std::fs::remove_dir_all(&cache);
    let out = out.unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.ends_with("identical\n") && said.matches("step ").count() == 10, "{out:?}");
}

#[test]
fn node_min_sees_the_same_batches_on_all_peers_though_one_restarts() {
    let dir = tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700)).tempdir().unwrap();
    let recipe = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes/documentation.toml");
    let mut command = Command::new(built::example("node_min"));
    let out = command.arg(recipe).arg("20").env("LANEWAY_CACHE", dir.path().join("cache")).env("LANEWAY_DIR", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && said.ends_with("identical\n") && said.matches("step ").count() == 20 && said.contains("restarted"), "{out:?}");
}
