//! `regard fill`.

use burn::tensor::Device;
use regard_models::pretrained::{Heads, InputError};
use regard_view::label::visible;
use serde_json::json;

use super::pretrained::{Encoder, expect_finite, texts};
use crate::{arguments::Fill, failure::Failure, output::Output, pictures::Shown};

/// Fills in masked words.
///
/// # Errors
/// A model without a head for masked words, a text without a mask.
pub fn run(options: &Fill) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Fill, device: &Device) -> Result<(), Failure> {
    let encoder = Encoder::open(
        &options.model.model,
        device,
        options.model.storage(),
        options.show.quiet,
    )?;
    let (opened, model) = (&encoder.opened, &encoder.model);
    let refused = || encoder.other_head("a head for masked words");
    if model.purpose() != Some(&Heads::MaskedTokens) {
        return Err(refused());
    }
    let Some(mask) = opened.tokenizer.special().mask else {
        let expected = "a tokenizer with a mask token, which stands where a word is asked for; name it as mask_token in tokenizer_config.json";
        return Err(opened.other(expected).into());
    };
    let token = opened.tokenizer.token(mask).unwrap_or_default();
    let mut shown = Shown::new(&options.show, Some(&options.model.model))?;
    let mut out = Output::standard();
    let texts = texts(&options.texts)?;
    let fill = |(line, text): (usize, String)| -> Result<(), Failure> {
        let written = text.replace("[MASK]", &token).replace("<mask>", &token);
        let encoded = opened.tokenizer.encode(&written, true)?;
        InputError::expect_room(line, &text, encoded.ids.len(), model.context(), 0)?;
        let places: Vec<usize> = (0..encoded.ids.len())
            .filter(|&place| encoded.ids[place] == mask)
            .collect();
        if places.is_empty() {
            return Err(Failure::Usage(format!(
                "{text:?} has no place to fill; write {token} there"
            )));
        }
        let (states, trace) = encoder.states(&text, &encoded, shown.is_wanted())?;
        let size = model.size();
        let mut answers = vec![];
        for &place in &places {
            let state = &states[place * size..(place + 1) * size];
            let likely = model.likeliest(state, options.top).ok_or_else(refused)?;
            expect_finite(&options.model.model, likely.iter().map(|one| one.1))?;
            let top = likely.into_iter().map(|(id, probability)| {
                let token = opened.tokenizer.decode(&[id], false)?;
                Ok((id, token, probability))
            });
            answers.push(top.collect::<Result<Vec<_>, Failure>>()?);
        }
        match options.show.json {
            true => {
                let places = places.iter().zip(&answers).map(|(place, answers)| {
                    let tokens = answers.iter().map(|(id, token, probability)| {
                        json!({"token": token, "id": id, "probability": probability})
                    });
                    json!({"position": place, "tokens": tokens.collect::<Vec<_>>()})
                });
                let mut line = json!({"text": text, "places": places.collect::<Vec<_>>()});
                if let Some(maps) = trace.as_ref().and_then(|trace| shown.json(trace)) {
                    line["maps"] = maps;
                }
                out.line(&line.to_string())?;
            }
            false => {
                out.line(&visible(&text))?;
                for (number, answers) in (1..).zip(&answers) {
                    if places.len() > 1 {
                        out.line(&format!("  place {number}"))?;
                    }
                    for (_, token, probability) in answers {
                        let share = 100.0 * probability;
                        out.line(&format!("  {share:6.2} %  {}", visible(token)))?;
                    }
                }
            }
        }
        if let Some(trace) = &trace {
            shown.push(&mut out, line, trace)?;
        }
        Ok(())
    };
    if let Err(error) = (1..).zip(texts).try_for_each(fill) {
        return shown.end(error);
    }
    out.flush()?;
    shown.write()
}
