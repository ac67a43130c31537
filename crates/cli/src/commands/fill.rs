//! `regard fill`.

use regard_models::pretrained::{Heads, Input, TextEncoder};
use regard_view::label::visible;
use serde_json::json;

use super::pretrained::{Opened, texts};
use crate::{
    arguments::Fill,
    failure::{CommandError, Failure},
    output::Output,
};

/// Fills in masked words.
///
/// # Errors
/// A model without a head for masked words, a text without a mask.
pub fn run(options: &Fill) -> Result<(), Failure> {
    options.compute.run(None, |_| work(options))
}

fn work(options: &Fill) -> Result<(), Failure> {
    let opened = Opened::find(&options.model.model)?;
    let model = TextEncoder::open(&opened.folder, options.model.storage())?;
    let refused = |expected: &str| {
        let folder = opened.folder.path().to_owned();
        let expected = expected.to_owned();
        Failure::from(CommandError::OtherModel { folder, expected })
    };
    let mask = opened.tokenizer.special().mask;
    let (Some(mask), Some(Heads::MaskedTokens)) = (mask, model.purpose()) else {
        return Err(refused("a masked language model, such as BERT"));
    };
    opened.tokenizer.expect_rows(model.vocabulary())?;
    let token = opened.tokenizer.token(mask).unwrap_or_default();
    let mut out = Output::standard();
    for text in texts(&options.texts)? {
        let written = text.replace("[MASK]", &token).replace("<mask>", &token);
        let encoded = opened.tokenizer.encode(&written, true)?;
        let places: Vec<usize> = (0..encoded.ids.len())
            .filter(|&place| encoded.ids[place] == mask)
            .collect();
        if places.is_empty() {
            return Err(Failure::Usage(format!(
                "{text:?} has no place to fill; write {token} there"
            )));
        }
        let input = Input {
            ids: &encoded.ids,
            types: &encoded.types,
        };
        let states = model.states(&[input], None)?;
        let size = model.size();
        let mut answers = vec![];
        for &place in &places {
            let state = &states[0][place * size..(place + 1) * size];
            let Some(likely) = model.likeliest(state, options.top) else {
                return Err(refused("a masked language model, such as BERT"));
            };
            let top = likely.into_iter().map(|(id, probability)| {
                let word = opened.tokenizer.decode(&[id], false)?;
                Ok((word.trim().to_owned(), probability))
            });
            answers.push(top.collect::<Result<Vec<_>, Failure>>()?);
        }
        if options.json {
            let places: Vec<_> = places
                .iter()
                .zip(&answers)
                .map(|(place, answers)| {
                    let answers: Vec<_> = answers
                        .iter()
                        .map(|(token, probability)| json!({"token": token, "probability": probability}))
                        .collect();
                    json!({"position": place, "tokens": answers})
                })
                .collect();
            let line = json!({"text": text, "places": places});
            out.line(&line.to_string())?;
            continue;
        }
        out.line(&visible(&text))?;
        for (number, answers) in (1..).zip(&answers) {
            if places.len() > 1 {
                out.line(&format!("  place {number}"))?;
            }
            for (token, probability) in answers {
                out.line(&format!(
                    "  {:6.2} %  {}",
                    100.0 * probability,
                    visible(token)
                ))?;
            }
        }
    }
    out.flush()
}
