//! `bindgen FILE.wasm FOLDER`: the module and its JavaScript for a page, without types and names.

use anyhow::{Context, Result};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = |what| arguments.next().with_context(|| format!("expected {what}"));
    let (module, folder) = (next("a file .wasm")?, next("a folder")?);
    Bindgen::new()
        .input_path(module)
        .web(true)?
        .typescript(false)
        .remove_name_section(true)
        .omit_default_module_path(false)
        .generate(folder)
}
