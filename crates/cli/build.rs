//! Compiles the checkpoint of `models/multi30k-en-de/` into the command, if it is there.

use std::{env, path::Path};

fn main() {
    println!("cargo:rustc-check-cfg=cfg(embedded_model)");
    println!("cargo:rerun-if-changed=build.rs");
    let Ok(crate_folder) = env::var("CARGO_MANIFEST_DIR") else {
        return;
    };
    let model = Path::new(&crate_folder).join("../../models/multi30k-en-de/model.safetensors");
    println!("cargo:rerun-if-changed={}", model.display());
    if model.is_file() {
        println!("cargo:rustc-cfg=embedded_model");
        println!("cargo:rustc-env=REGARD_EMBEDDED_MODEL={}", model.display());
    }
}
