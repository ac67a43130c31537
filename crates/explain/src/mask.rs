//! `regard explain mask`: what each query may see.

use regard_nn::explain::masks::Expression;
use regard_view::{label::visible, mask::MaskPicture};
use serde_json::json;

use crate::{Explain, Page, Refused, Told, masked, options::LARGEST_SIZE, refused};

/// The number of queries and keys if neither an option nor a list gives it.
const DEFAULT_SIZE: usize = 8;

/// Draws a mask.
///
/// # Errors
/// A mask that cannot be read or has other sizes.
pub fn tell(options: &Explain) -> Result<Told, Refused> {
    let settings = options
        .settings()
        .into_iter()
        .map(|(name, _)| name.to_owned());
    let digits = options.output.digits.map(|_| "digits".to_owned());
    let foreign = options.of_mechanisms().into_iter().chain(settings);
    if let Some(option) = foreign.chain(digits).next() {
        return Err(Refused::Usage(format!(
            "--{option} is an option of mechanisms; `regard explain mask` has --mask, --causal, --size, --svg, --png, \
             --html, --json and --quiet"
        )));
    }
    let Drawn {
        text,
        seen,
        drawn,
        count,
        told,
        picture,
    } = draw(options, LARGEST_SIZE)?;
    let printed = match (options.output.json, options.output.quiet) {
        (true, _) => {
            let [queries, keys] = [seen.len(), seen.first().map_or(0, Vec::len)];
            let value = json!({ "mask": text, "queries": queries, "keys": keys, "seen": seen, "pairs_seen": count });
            format!("{}\n", serde_json::to_string(&value)?)
        }
        (false, true) => drawn,
        (false, false) => told.clone(),
    };
    let page = options.output.draws().then(|| Page {
        title: text,
        text: told,
        svg: picture.svg(),
    });
    Ok(Told { printed, page })
}

/// A mask as picture and text.
pub struct Drawn {
    /// The mask as it is written.
    pub text: String,
    /// Whether each query sees each key, `[queries][keys]`.
    pub seen: Vec<Vec<bool>>,
    /// A square for each pair, as text.
    pub drawn: String,
    /// How many pairs are seen.
    pub count: usize,
    /// The same with the number of pairs.
    pub told: String,
    /// The picture.
    pub picture: MaskPicture,
}

/// Draws the mask that the options name, of at most `most` queries and keys.
///
/// # Errors
/// No mask, one that cannot be read, one that has other sizes or is larger.
pub fn draw(options: &Explain, most: usize) -> Result<Drawn, Refused> {
    let Some(text) = masked(options.mask_to_draw.clone(), options) else {
        return Err(Refused::Usage(
            "which mask? Name one, as in `regard explain mask window:3 --causal`; `regard explain --list` names \
             them all"
                .to_owned(),
        ));
    };
    let mask = Expression::parse(&text).map_err(refused)?;
    let (queries, keys) = options.output.size.unwrap_or_else(|| {
        let (queries, keys) = mask.natural_size();
        let length = keys.or(queries).unwrap_or(DEFAULT_SIZE);
        (queries.unwrap_or(length), length)
    });
    if queries.max(keys) > most {
        return Err(Refused::Usage(format!(
            "a mask of {queries} queries x {keys} keys; expected at most {most} of each, by a shorter list or a smaller --size"
        )));
    }
    let seen = mask.table(queries, keys).map_err(refused)?;
    let picture = MaskPicture::new(&text, seen.clone());
    let (count, of) = picture.share();
    let drawn = mask.picture(queries, keys).map_err(refused)?;
    let positions = match mask.names_positions() {
        true => "; positions count from 0",
        false => "",
    };
    let percent = 100.0 * count as f64 / of.max(1) as f64;
    let told = format!(
        "{}: a row for each of {queries} queries, a column for each of {keys} keys; ■ is seen{positions}\n{drawn}\
         {count} of {of} pairs seen ({percent:.1} %)\n",
        visible(&text)
    );
    Ok(Drawn {
        text,
        seen,
        drawn,
        count,
        told,
        picture,
    })
}
