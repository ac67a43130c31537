//! `regard explain`: a mechanism at work, step by step.

use std::path::Path;

use regard_explain::{Explain, Page, Refused, tell};
use regard_view::{
    html::{self, Figure},
    png::{self, PngOptions},
};

use crate::{failure::Failure, output};

/// Runs the command.
///
/// # Errors
/// A name that is not known, vectors and parameters that do not fit, a picture that cannot be written.
pub fn run(options: &Explain) -> Result<(), Failure> {
    let files = [
        &options.output.svg,
        &options.output.png,
        &options.output.html,
    ];
    let files = files.into_iter().flatten().map(|path| (path, false));
    output::expect_apart(None::<&Path>, files)?;
    let told = tell(options).map_err(refused)?;
    if let Some(page) = &told.page {
        write(options, page)?;
    }
    output::print(&told.printed)
}

/// Writes a picture to the files that were asked for; a page also holds its numbers.
fn write(options: &Explain, Page { title, text, svg }: &Page) -> Result<(), Failure> {
    if let Some(path) = &options.output.svg {
        output::write_file(path, svg.as_bytes())?;
    }
    if let Some(path) = &options.output.png {
        let bytes = png::from_svg(svg, &PngOptions::default())?;
        output::write_file(path, &bytes)?;
    }
    if let Some(path) = &options.output.html {
        let figure = Figure {
            title: "",
            svg,
            text,
        };
        output::write_file(path, html::figures(title, &[figure]).as_bytes())?;
    }
    Ok(())
}

/// An error of the example, reported as an error of the command line.
pub fn refused(refused: Refused) -> Failure {
    match refused {
        Refused::Usage(message) => Failure::Usage(message),
        other => other.into(),
    }
}
