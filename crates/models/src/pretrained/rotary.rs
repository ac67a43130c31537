//! Rotary positions as configurations state them: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before).
//!
//! For pair `i` of `r` features: `f_i = θ^{-2 i / r}`, then by `rope_type`
//! ```text
//! linear    f_i / s
//! dynamic   θ grows with texts longer than those of training
//! llama3    long wavelengths divided by s, short ones kept, blended between
//! yarn      the same by numbers of turns, and cosines and sines times 0.1 ln s + 1
//! longrope  f_i / factor_i, one list for short and one for long texts; cosines and sines times √(1 + ln s / ln L)
//! ```

use std::f64::consts::TAU;

use regard_kernels::stack::{LongTexts, Rotation};
use regard_nn::position::{RotaryConfig, Scaling};

use super::{config::Config, error::PretrainedError};

/// The type of layers that see all.
const FULL: &str = "full_attention";

/// The rotation of heads of `head` features in layers of type `layer` (`full_attention`), if the configuration tells types apart.
pub(super) fn rotation(
    config: &Config,
    head: usize,
    layer: Option<&str>,
) -> Result<Rotation, PretrainedError> {
    let section = settings(config, layer)?;
    let of = section.as_ref().unwrap_or(config);
    let (base, size) = base_and_size(config, of, head)?;
    rotation_of(config, of, base, size)
}

/// The same as base and scaling, where its angles follow from these and are those of texts of any length.
pub(super) fn stated(
    config: &Config,
    head: usize,
) -> Result<Option<RotaryConfig>, PretrainedError> {
    let section = settings(config, Some(FULL))?;
    let of = section.as_ref().unwrap_or(config);
    let (base, size) = base_and_size(config, of, head)?;
    let scaling = scaling(config, of)?;
    Ok(scaling.map(|scaling| RotaryConfig {
        base,
        scaling,
        ..RotaryConfig::new(size)
    }))
}

/// The base, and how many of a head's features are turned.
fn base_and_size(
    config: &Config,
    of: &Config,
    head: usize,
) -> Result<(f64, usize), PretrainedError> {
    let stated = [of, config].into_iter().find(|it| it.has("rope_theta"));
    let base = match stated {
        Some(stated) => base_of(stated, "rope_theta")?,
        None => 10000.0,
    };
    let share = match of.has("partial_rotary_factor") {
        true => of.positive("partial_rotary_factor")?,
        false => config.positive_or("partial_rotary_factor", 1.0)?,
    };
    let size = (head as f64 * share) as usize;
    if size < 2 || !size.is_multiple_of(2) || size > head {
        let expected =
            format!("a share of the head's {head} features that is an even number of them");
        return Err(config.refuse("partial_rotary_factor", expected));
    }
    Ok((base, size))
}

/// The base that a key states.
pub(super) fn base_of(config: &Config, key: &str) -> Result<f64, PretrainedError> {
    match config.float(key)? {
        base if base > 1.0 => Ok(base),
        _ => Err(config.refuse(key, "a number above 1")),
    }
}

/// `f_i = base^{-2 i / size}`, unscaled.
pub(super) fn plain(config: &Config, base: f64, size: usize) -> Result<Rotation, PretrainedError> {
    Ok(Rotation {
        frequencies: frequencies(config, base, size, Scaling::None)?,
        factor: 1.0,
        interleaved: false,
        long: None,
    })
}

fn frequencies(
    config: &Config,
    base: f64,
    size: usize,
    scaling: Scaling,
) -> Result<Vec<f64>, PretrainedError> {
    let rotary = RotaryConfig {
        base,
        scaling,
        ..RotaryConfig::new(size)
    };
    match rotary.init() {
        Ok(rotary) => Ok(rotary.frequencies().to_vec()),
        Err(error) => Err(PretrainedError::malformed(config.path(), error.to_string())),
    }
}

/// The longest text: `max_position_embeddings`, or what the rotation stretches the length of training to.
pub(super) fn context(config: &Config) -> Result<usize, PretrainedError> {
    let stated = config.size("max_position_embeddings")?;
    let Some(of) = settings(config, Some(FULL))? else {
        return Ok(stated);
    };
    let stretched = match kind(config, &of)? {
        "dynamic" => of.positive("factor")? * stated as f64,
        "yarn" => {
            let trained = trained(config, &of)?;
            stretch(config, &of, trained)? * trained as f64
        }
        _ => 0.0,
    };
    Ok(stated.max(stretched as usize))
}

/// The section that describes the rotation: the layer type's, or the only one. In a file with sections of both names `rope_scaling` holds,
/// for Gemma 3's layers that see all together with their own section.
fn settings(config: &Config, layer: Option<&str>) -> Result<Option<Config>, PretrainedError> {
    let scaling = config.section("rope_scaling")?;
    let scaling = scaling.filter(|scaling| !scaling.is_empty());
    let parameters = config.section("rope_parameters")?;
    let own = match (&parameters, layer) {
        (Some(parameters), Some(layer)) => parameters.section(layer)?,
        _ => None,
    };
    Ok(match (own, scaling) {
        (Some(own), Some(scaling)) if layer == Some(FULL) => Some(own.updated(scaling)),
        (Some(own), _) => Some(own),
        (None, scaling) => scaling.or(parameters),
    })
}

/// The kind of a rotation.
fn kind(config: &Config, of: &Config) -> Result<&'static str, PretrainedError> {
    const TYPES: [&str; 7] = [
        "default", "linear", "dynamic", "yarn", "llama3", "longrope", "su",
    ];
    let key = match of.has("rope_type") {
        true => "rope_type",
        false => "type",
    };
    let kind = match of.has(key) {
        true => TYPES[of.one_of(key, &TYPES)?],
        false => "default",
    };
    Ok(match kind {
        "su" => "longrope",
        // Its first files call it so.
        "yarn" if config.text_or("model_type", "")? == "phi3" => "longrope",
        kind => kind,
    })
}

/// Where the length of training is stated, and by which key. What stands beside the section holds, as in Phi-3's files, but not for the
/// section of a type of layers.
fn statement<'a>(config: &'a Config, of: &'a Config) -> (&'a Config, &'static str) {
    const KEY: &str = "original_max_position_embeddings";
    let beside = (!of.is_nested()).then_some(config);
    match beside.into_iter().chain([of]).find(|it| it.has(KEY)) {
        Some(stated) => (stated, KEY),
        None => (config, "max_position_embeddings"),
    }
}

/// The length of training.
fn trained(config: &Config, of: &Config) -> Result<usize, PretrainedError> {
    let (stated, key) = statement(config, of);
    stated.size(key)
}

/// How many times longer than in training texts may be.
fn stretch(config: &Config, of: &Config, trained: usize) -> Result<f64, PretrainedError> {
    match of.has("factor") {
        true => of.positive("factor"),
        false => Ok(config.size("max_position_embeddings")? as f64 / trained as f64),
    }
}

/// How angles are reduced by kinds for which texts of all lengths have the same angles.
fn scaling(config: &Config, of: &Config) -> Result<Option<Scaling>, PretrainedError> {
    Ok(match kind(config, of)? {
        "default" => Some(Scaling::None),
        "linear" => Some(Scaling::Linear {
            factor: of.positive("factor")?,
        }),
        "llama3" => Some(Scaling::Llama3 {
            factor: of.positive("factor")?,
            low_frequency_factor: of.positive("low_freq_factor")?,
            high_frequency_factor: of.positive("high_freq_factor")?,
            original_length: trained(config, of)?,
        }),
        _ => None,
    })
}

fn rotation_of(
    config: &Config,
    of: &Config,
    base: f64,
    size: usize,
) -> Result<Rotation, PretrainedError> {
    let mut rotation = plain(config, base, size)?;
    if let Some(scaling) = scaling(config, of)? {
        rotation.frequencies = frequencies(config, base, size, scaling)?;
        return Ok(rotation);
    }
    let plain = rotation.frequencies.clone();
    match kind(config, of)? {
        "dynamic" => {
            rotation.long = Some(LongTexts::Dynamic {
                beyond: config.size("max_position_embeddings")?,
                base,
                factor: of.positive("factor")?,
            });
        }
        "yarn" => {
            let trained = trained(config, of)?;
            let factor = stretch(config, of, trained)?;
            rotation.frequencies = yarn(of, &plain, base, factor, trained as f64)?;
            rotation.factor = yarn_factor(of, factor)?;
        }
        "longrope" => {
            let trained = trained(config, of)?;
            let stretched = |key: &str| {
                let factors = of.floats(key)?;
                let good = factors.len() == plain.len() && factors.iter().all(|&f| f > 0.0);
                match good {
                    true => Ok(plain.iter().zip(&factors).map(|(f, s)| f / s).collect()),
                    false => {
                        let expected = format!("a list of {} numbers above 0", plain.len());
                        Err(of.refuse(key, expected))
                    }
                }
            };
            rotation.frequencies = stretched("short_factor")?;
            rotation.long = Some(LongTexts::Fixed {
                beyond: trained,
                frequencies: stretched("long_factor")?,
            });
            let factor = stretch(config, of, trained)?;
            rotation.factor = match of.has("attention_factor") {
                true => of.positive("attention_factor")?,
                false if factor <= 1.0 => 1.0,
                false if trained < 2 => {
                    let (stated, key) = statement(config, of);
                    let expected = "at least 2, as its logarithm divides that of the factor";
                    return Err(stated.refuse(key, expected));
                }
                false => (1.0 + factor.ln() / (trained as f64).ln()).sqrt(),
            };
        }
        _ => {}
    }
    Ok(rotation)
}

/// YaRN (Peng et al. 2023, section 3.2): pairs with fewer turns over the length of training than `beta_slow` are divided, those with
/// more than `beta_fast` are kept.
fn yarn(
    of: &Config,
    plain: &[f64],
    base: f64,
    factor: f64,
    trained: f64,
) -> Result<Vec<f64>, PretrainedError> {
    let size = 2.0 * plain.len() as f64;
    let pair = |turns: f64| size * (trained / (turns * TAU)).ln() / (2.0 * base.ln());
    let mut low = pair(of.positive_or("beta_fast", 32.0)?);
    let mut high = pair(of.positive_or("beta_slow", 1.0)?);
    if of.flag_or("truncate", true)? {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(size - 1.0));
    if low == high {
        high += 0.001;
    }
    let blend = |(i, f): (usize, &f64)| {
        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        f / factor * divided + f * (1.0 - divided)
    };
    Ok(plain.iter().enumerate().map(blend).collect())
}

/// The factor of YaRN's cosines and sines, in whose square the scores grow.
fn yarn_factor(of: &Config, factor: f64) -> Result<f64, PretrainedError> {
    if of.has("attention_factor") {
        return of.positive("attention_factor");
    }
    let grown = |scale: f64| match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * scale * factor.ln() + 1.0,
    };
    // Zero counts as missing.
    let all = of.float_or("mscale_all_dim", 0.0)?;
    let some = of.float_or("mscale", 0.0)?;
    match all != 0.0 && some != 0.0 {
        true => Ok(grown(some) / grown(all)),
        false => Ok(grown(1.0)),
    }
}
