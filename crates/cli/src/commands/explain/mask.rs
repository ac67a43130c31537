//! `regard explain mask`: what each query may see.

use regard_nn::explain::masks::Expression;
use regard_view::{
    label::visible,
    mask::MaskPicture,
    png::{self, PngOptions},
};
use serde_json::json;

use super::{both, refused};
use crate::{arguments::Explain, failure::Failure, output};

/// Queries and keys where neither an option nor a list says how many.
const DEFAULT_SIZE: usize = 8;

/// Draws a mask.
///
/// # Errors
/// A mask that cannot be read or has other sizes, a picture that cannot be written.
pub fn run(options: &Explain) -> Result<(), Failure> {
    if let Some(option) = options.of_mechanisms() {
        return Err(Failure::Usage(format!(
            "--{option} is an option of mechanisms; `regard explain mask` has --mask, --causal, --size, --svg, --png, \
             --json and --quiet"
        )));
    }
    let given = options.mask_to_draw.iter().chain(&options.mask).cloned();
    let causal = options.causal.then(|| "causal".to_owned());
    let text = given.chain(causal).reduce(both);
    let Some(text) = text else {
        return Err(Failure::Usage(
            "which mask? Name one, as in `regard explain mask window:3 --causal`; `regard explain --list` names \
             them all"
                .to_owned(),
        ));
    };
    let mask = Expression::parse(&text).map_err(refused)?;
    let (queries, keys) = options.size.unwrap_or_else(|| {
        let (queries, keys) = mask.natural_size();
        let length = keys.or(queries).unwrap_or(DEFAULT_SIZE);
        (queries.unwrap_or(length), length)
    });
    let seen = mask.table(queries, keys).map_err(refused)?;
    let picture = MaskPicture::new(&text, seen.clone());
    if let Some(path) = &options.svg {
        output::write_file(path, picture.svg().as_bytes())?;
    }
    if let Some(path) = &options.png {
        let bytes = png::from_svg(&picture.svg(), &PngOptions::default())?;
        output::write_file(path, &bytes)?;
    }
    let (count, of) = picture.share();
    if options.json {
        let value = json!({ "mask": text, "queries": queries, "keys": keys, "seen": seen, "pairs_seen": count });
        return output::print(&format!("{}\n", serde_json::to_string(&value)?));
    }
    let drawn = mask.picture(queries, keys).map_err(refused)?;
    if options.quiet {
        return output::print(&drawn);
    }
    let positions = match mask.names_positions() {
        true => "; positions count from 0",
        false => "",
    };
    let percent = 100.0 * count as f64 / of.max(1) as f64;
    output::print(&format!(
        "{}: a row for each of {queries} queries, a column for each of {keys} keys; ■ is seen{positions}\n{drawn}\
         {count} of {of} pairs seen ({percent:.1} %)\n",
        visible(&text)
    ))
}
